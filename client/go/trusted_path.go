package ckptd

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const maxLinks = 40 // as the kernel's

// walk looks at one path, from the root down. Names may be used again, since each is looked at in a
// folder that was found safe.
type walk struct {
	trusted, roots map[int]bool // users
	at             string       // without links; "" is the root
	device         uint64       // of the folder `at`
	left           []string
	links          int
}

// whyUnsafe says why a user who is neither root nor trusted could change what an absolute path leads
// to, and "" if nobody could. The rules are those of common/base/trusted_path.h: each folder and link
// on the way, and the path itself, belong to a trusted user, and others may write only in sticky
// folders and in mount points of root's, such as volumes of pods.
func whyUnsafe(path string, trusted map[int]bool) string {
	root, err := os.Stat("/")
	if err != nil {
		return err.Error()
	}
	// A user namespace without root shows its files as nobody's.
	w := walk{trusted: map[int]bool{}, roots: map[int]bool{0: true, userOf(root): true},
		device: deviceOf(root), left: strings.Split(path, "/")}
	for _, users := range []map[int]bool{trusted, w.roots} {
		for user, is := range users {
			w.trusted[user] = w.trusted[user] || is
		}
	}
	why := w.folder("/", root)
	for len(w.left) > 0 && why == "" {
		name := w.left[0]
		w.left = w.left[1:]
		switch name {
		case "", ".":
		case "..":
			w.at = strings.TrimSuffix(filepath.Dir(w.at), "/")
		default:
			why = w.enter(w.at + "/" + name)
		}
	}
	return why
}

func (w *walk) enter(here string) string {
	info, err := os.Lstat(here)
	if err == nil && info.IsDir() && w.trusted[userOf(info)] {
		info, err = os.Stat(here + "/.") // mounts what is mounted on demand
	}
	switch {
	case err != nil:
		return fmt.Sprintf("%s cannot be looked at (%v)", here, err)
	case !w.trusted[userOf(info)]:
		return fmt.Sprintf("%s belongs to user %d", here, userOf(info))
	case info.Mode()&fs.ModeSymlink != 0:
		return w.follow(here)
	case info.IsDir():
		if why := w.folder(here, info); why != "" {
			return why
		}
		w.device = deviceOf(info)
	}
	w.at = here
	return ""
}

func (w *walk) follow(link string) string {
	target, err := os.Readlink(link)
	if w.links++; err != nil || w.links > maxLinks {
		return link + " is a link that leads nowhere"
	}
	if strings.HasPrefix(target, "/") {
		w.at = ""
	}
	w.left = append(strings.Split(target, "/"), w.left...)
	return ""
}

func (w *walk) folder(path string, info fs.FileInfo) string {
	mounted := w.roots[userOf(info)] && deviceOf(info) != w.device
	switch {
	case !w.trusted[userOf(info)]:
		return fmt.Sprintf("%s belongs to user %d", path, userOf(info))
	case info.Mode().Perm()&0o022 == 0 || info.Mode()&fs.ModeSticky != 0 || mounted:
		return ""
	case info.Mode().Perm()&0o022 == 0o020 && isPrivateGroup(info.Sys().(*syscall.Stat_t).Gid, userOf(info)):
		return ""
	}
	return fmt.Sprintf("other users may write in %s (mode %04o; `chmod go-w` or `chmod +t` ends that)",
		path, info.Mode().Perm())
}

// isPrivateGroup is true of the group of a user in which nobody else is: some systems let it write by
// default. Root's group is no such one.
func isPrivateGroup(group uint32, owner int) bool {
	found, err := user.LookupId(strconv.Itoa(owner))
	gid := strconv.FormatUint(uint64(group), 10)
	if err != nil || owner == 0 || found.Gid != gid {
		return false
	}
	entries, err := os.ReadFile("/etc/group")
	if err != nil {
		return false
	}
	for _, entry := range strings.Split(string(entries), "\n") { // name:password:gid:members
		if fields := strings.Split(entry, ":"); len(fields) == 4 && fields[2] == gid {
			return fields[0] == found.Username && (fields[3] == "" || fields[3] == found.Username)
		}
	}
	return false
}

func userOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

func deviceOf(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Dev }
