package ckptd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	maxSocketPath = 107 // bytes in sockaddr_un, less the terminator
	maxRank       = 1000000
	connectPause  = 50 * time.Millisecond
)

// Query says which daemon is meant. Its zero value means the daemon of this process.
type Query struct {
	Address string              // "" : CKPTD_ADDRESS, else the default socket
	Rank    *int                // nil: RANK, else SLURM_PROCID, else 0
	Job     string              // "" : CKPTD_JOB, else SLURM_JOB_ID, else "default"
	Getenv  func(string) string // nil: os.Getenv
}

// Address is a daemon's workload socket.
type Address struct {
	Path     string
	ChosenBy string // for people
}

func (a Address) String() string { return fmt.Sprintf("unix:%s (%s)", a.Path, a.ChosenBy) }

// Resolve finds the socket: the argument, CKPTD_ADDRESS, or RUN_DIR/JOB/rank-N.sock.
// {rank} and {local_rank} stand for the numbers that torchrun or Slurm gave this process.
func Resolve(query Query) (Address, error) {
	if query.Getenv == nil {
		query.Getenv = os.Getenv
	}
	text, chosenBy := query.Address, "given as address"
	if text == "" {
		text, chosenBy = query.Getenv("CKPTD_ADDRESS"), "from CKPTD_ADDRESS"
	}
	if text == "" {
		job := first(query.Job, query.Getenv("CKPTD_JOB"), query.Getenv("SLURM_JOB_ID"), "default")
		if strings.Contains(job, "/") || job == "." || job == ".." {
			return Address{}, invalid("job", job, "choosing the daemon's address: the job name %q cannot name a folder; "+
				"use letters, digits, dots and dashes", job)
		}
		text, chosenBy = runDir(query.Getenv)+"/"+job+"/rank-{rank}.sock", "the default; CKPTD_ADDRESS is not set"
	}
	path, err := expand(text, query)
	if err != nil {
		return Address{}, err
	}
	return socketAddress(path, chosenBy)
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

func runDir(getenv func(string) string) string {
	if folder := getenv("CKPTD_RUN_DIR"); folder != "" {
		return folder
	}
	if folder := getenv("XDG_RUNTIME_DIR"); folder != "" {
		return folder + "/ckptd"
	}
	if os.Geteuid() == 0 {
		return "/run/ckptd"
	}
	return getenv("HOME") + "/.ckptd/run"
}

// number reads the first variable that is set; 0 without one.
func number(getenv func(string) string, names ...string) (int, error) {
	for _, name := range names {
		text := getenv(name)
		if text == "" {
			continue
		}
		value, err := strconv.ParseUint(text, 10, 32)
		if err != nil || value > maxRank {
			return 0, invalid(name, text, "choosing the daemon's address: the environment says %s=%q, which is no rank; "+
				"unset it or name the daemon by address", name, text)
		}
		return int(value), nil
	}
	return 0, nil
}

func expand(text string, query Query) (string, error) {
	if strings.Contains(text, "{rank}") {
		rank, err := number(query.Getenv, "RANK", "SLURM_PROCID")
		if query.Rank != nil {
			rank, err = *query.Rank, nil
		}
		if err != nil {
			return "", err
		}
		text = strings.ReplaceAll(text, "{rank}", strconv.Itoa(rank))
	}
	if strings.Contains(text, "{local_rank}") {
		rank, err := number(query.Getenv, "LOCAL_RANK", "SLURM_LOCALID")
		if err != nil {
			return "", err
		}
		text = strings.ReplaceAll(text, "{local_rank}", strconv.Itoa(rank))
	}
	return text, nil
}

func socketAddress(text, chosenBy string) (Address, error) {
	path := strings.TrimPrefix(text, "unix:")
	if path != text {
		path = strings.TrimPrefix(path, "//")
	}
	if !strings.HasPrefix(path, "/") {
		return Address{}, invalid("address", text, "reading the daemon's address %q (%s): it is no absolute path of a Unix "+
			"socket; use unix:///run/ckptd/JOB/rank-0.sock, or the path alone", text, chosenBy)
	}
	if len(path) > maxSocketPath {
		return Address{}, invalid("address", path, "reading the daemon's address %s (%s): it is longer than the %d bytes "+
			"that a Unix socket can have; give the daemon a shorter run folder", path, chosenBy, maxSocketPath)
	}
	return Address{Path: path, ChosenBy: chosenBy}, nil
}

// dial connects to a socket of the daemon. It refuses one of another user, who may have made it
// where a daemon's was expected, and one that another user could put theirs in the place of.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	made, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	connection := made.(*net.UnixConn)
	owner, err := ownerOf(connection)
	if err == nil {
		err = checkOwner(owner, path)
	}
	if err != nil {
		connection.Close()
		return nil, err
	}
	return connection, nil
}

// trustedUsers are this user, root, and the one that CKPTD_DAEMON_UID names, by name or number.
func trustedUsers() map[int]bool {
	named := os.Getenv("CKPTD_DAEMON_UID")
	if found, err := user.Lookup(named); err == nil {
		named = found.Uid
	}
	trusted := map[int]bool{0: true, os.Geteuid(): true}
	if number, err := strconv.Atoi(named); err == nil {
		trusted[number] = true
	}
	return trusted
}

func checkOwner(owner int, path string) error {
	trusted := trustedUsers()
	if !trusted[owner] {
		return &foreignOwner{fmt.Sprintf("user %d listens there, neither this user nor root (CKPTD_DAEMON_UID=%d trusts it)",
			owner, owner)}
	}
	if why := whyUnsafe(path, trusted); why != "" {
		return &foreignOwner{why + ", so another user could put a socket there (CKPTD_DAEMON_UID names one to trust)"}
	}
	return nil
}

type foreignOwner struct{ why string }

func (e *foreignOwner) Error() string { return e.why }

func (e *foreignOwner) Is(target error) bool { return target == os.ErrPermission }

func ownerOf(connection *net.UnixConn) (int, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return 0, err
	}
	var found *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		found, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	return int(found.Uid), nil
}

// awaitListening returns once something accepts connections, and waits for it as long as `wait`.
// A plain connection says exactly why it fails, where gRPC would not.
func awaitListening(ctx context.Context, address Address, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		err := probe(address)
		if err == nil {
			return nil
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return cancelled(ctx, "connecting to the ckptd daemon at "+address.String())
		}
		if errors.Is(err, os.ErrPermission) || ctx.Err() != nil {
			return unreachable(address, err)
		}
		if !sleep(ctx, connectPause) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return unreachable(address, err)
		}
	}
}

// probe says why a socket cannot be reached. It does so even when the caller's time is up: no
// connection to a Unix socket takes longer.
func probe(address Address) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	connection, err := dial(ctx, address.Path)
	if err == nil {
		connection.Close()
	}
	return err
}

func unreachable(address Address, err error) *Error {
	code, why := codes.Unavailable, err.Error()
	advice := "start the job's daemons with `ckptd launch --nproc N`, or name another by address or CKPTD_ADDRESS"
	switch {
	case errors.Is(err, os.ErrPermission):
		code, advice = codes.PermissionDenied, "run as the daemon's user, or as root"
	case errors.Is(err, os.ErrNotExist):
		why = "no socket is there"
		if others, _ := filepath.Glob(filepath.Dir(address.Path) + "/rank-*[0-9].sock"); len(others) > 0 {
			why += fmt.Sprintf(", beside those of %d other daemons: the group may have fewer than the job has ranks", len(others))
		}
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "a socket is there, but no daemon listens on it"
	}
	return &Error{Code: code, Reason: ReasonDaemonUnreachable, cause: err,
		Message: fmt.Sprintf("connecting to the ckptd daemon at %s: %s; %s", address, why, advice),
		Facts:   map[string]string{"address": address.Path, "chosen_by": address.ChosenBy}}
}
