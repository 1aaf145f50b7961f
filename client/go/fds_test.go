package ckptd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	v1 "ckptd/v1"

	"google.golang.org/grpc/codes"
)

const (
	tokenOfTests = "0123456789abcdef0123456789abcdef"
	pageBytes    = 4096
)

// message is what a daemon sends at once.
type message struct {
	magic                string
	status, here, toCome uint32
	fds                  []int
	behind               string
}

func (m message) sendTo(t *testing.T, connection *net.UnixConn) {
	bytes := []byte(m.magic)
	for _, number := range []uint32{m.status, m.here, m.toCome} {
		bytes = binary.LittleEndian.AppendUint32(bytes, number)
	}
	var rights []byte
	if len(m.fds) > 0 {
		rights = syscall.UnixRights(m.fds...)
	}
	if _, _, err := connection.WriteMsgUnix(append(bytes, m.behind...), rights, nil); err != nil {
		t.Error(err)
	}
}

// daemon answers each token with `messages` and keeps the connection if there is one that is none.
func daemon(t *testing.T, messages ...message) string {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		connection, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		defer connection.Close()
		token := make([]byte, tokenChars)
		if _, err := io.ReadFull(connection, token); err != nil || string(token) != tokenOfTests {
			t.Errorf("%q, %v", token, err)
		}
		for _, one := range messages {
			one.sendTo(t, connection)
		}
		if len(messages) == 0 {
			connection.Read(token) // says nothing until the client goes
		}
	}()
	return path
}

// files are `count` descriptors of files of a page each, whose first byte is their number.
func files(t *testing.T, count int) []int {
	fds := make([]int, count)
	for i := range fds {
		file, err := os.CreateTemp(t.TempDir(), "segment")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		content := make([]byte, pageBytes)
		content[0] = byte(i)
		file.Write(content)
		fds[i] = int(file.Fd())
	}
	return fds
}

func fetch(ctx context.Context, path string, count int, use func(int) error) error {
	socket, err := openFDSocket(ctx, path, tokenOfTests, time.Minute)
	if err != nil {
		return err
	}
	defer socket.Close()
	return socket.receive(ctx, count, use)
}

func openFDs(t *testing.T) int {
	found, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

func TestDescriptorsOfSeveralMessagesAreMappedInOrder(t *testing.T) {
	const count = 130
	fds := files(t, count)
	path := daemon(t, message{"CKP1", 0, 128, 2, fds[:128], ""}, message{"CKP1", 0, 2, 0, fds[128:], ""})
	segments := make([]uint64, count)
	for i := range segments {
		segments[i] = pageBytes
	}
	memory, err := reserve(segments, count*pageBytes, v1.AttachMode_ATTACH_MODE_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	err = fetch(context.Background(), path, count, func(fd int) error {
		flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if flags&syscall.FD_CLOEXEC == 0 {
			t.Error("a program that is executed would inherit the descriptor")
		}
		return memory.add(fd)
	})
	if err != nil {
		t.Fatal(err)
	}
	memory.populate()
	for i := 0; i < count; i++ {
		if memory.slab[i*pageBytes] != byte(i) {
			t.Fatal(i)
		}
		memory.slab[i*pageBytes] = 255
	}
	if err := memory.add(fds[0]); ReasonOf(err) != ReasonInvalidReply {
		t.Error(err)
	}
	memory.Close()
	memory.Close()
	// The server's end may still be closing.
	for deadline := time.Now().Add(5 * time.Second); openFDs(t) > before && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if after := openFDs(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestASegmentThatIsTooShortIsRefused(t *testing.T) {
	memory, err := reserve([]uint64{2 * pageBytes}, 2*pageBytes, v1.AttachMode_ATTACH_MODE_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	path := daemon(t, message{"CKP1", 0, 1, 0, files(t, 1), ""})
	if err := fetch(context.Background(), path, 1, memory.add); ReasonOf(err) != ReasonInvalidReply {
		t.Error(err)
	}
}

func TestAnswersThatCannotBeTrueAreRefused(t *testing.T) {
	two := files(t, 2)
	cases := map[string][]message{
		"another magic":          {{"CKP2", 0, 2, 0, two, ""}},
		"more than were wanted":  {{"CKP1", 0, 2, 1, two, ""}},
		"fewer than announced":   {{"CKP1", 0, 2, 0, two[:1], ""}},
		"more than announced":    {{"CKP1", 0, 1, 0, two, ""}},
		"fewer than were wanted": {{"CKP1", 0, 1, 0, two[:1], ""}},
		"nothing for ever":       {{"CKP1", 0, 0, 2, nil, ""}},
		"a far larger count":     {{"CKP1", 0, 2, 0xffffffff, two, ""}},
		"a status that is none":  {{"CKP1", 99, 0, 0, nil, "\x01\x00\x00\x00x"}},
		"an endless sentence":    {{"CKP1", 16, 0, 0, nil, "\xff\xff\xff\xff"}},
		"an end too early":       {{"CK", 0, 0, 0, nil, ""}},
		"half a sentence":        {{"CKP1", 16, 0, 0, nil, "\x09\x00\x00\x00no"}},
	}
	for name, messages := range cases {
		err := fetch(context.Background(), daemon(t, messages...), 2, func(int) error { return nil })
		if ReasonOf(err) != ReasonInvalidReply {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARefusalHasItsCodeAndSentence(t *testing.T) {
	path := daemon(t, message{"CKP1", 16, 0, 0, nil, "\x05\x00\x00\x00spent"})
	err := fetch(context.Background(), path, 1, nil)
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != codes.Unauthenticated || failure.Reason != ReasonTokenInvalid {
		t.Error(err)
	}
}

func TestAnEmptyShardIsOneMessage(t *testing.T) {
	if err := fetch(context.Background(), daemon(t, message{"CKP1", 0, 0, 0, nil, ""}), 0, nil); err != nil {
		t.Error(err)
	}
}

func TestASilentDaemonIsGivenUp(t *testing.T) {
	socket, err := openFDSocket(context.Background(), daemon(t), tokenOfTests, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	socket.silence = 100 * time.Millisecond
	if err := socket.receive(context.Background(), 1, nil); ReasonOf(err) != ReasonDaemonUnreachable {
		t.Error(err)
	}
}

func TestACancelledContextEndsTheWaitForDescriptors(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	socket, err := openFDSocket(ctx, daemon(t), tokenOfTests, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := socket.receive(ctx, 1, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestATokenAndAPathOfAnotherFormAreNotUsed(t *testing.T) {
	for _, foreign := range [][2]string{{"/s", "short"}, {"/s", tokenOfTests[1:] + "\n"}, {"s", tokenOfTests}, {"/" + string(make([]byte, 200)), tokenOfTests}} {
		if _, err := openFDSocket(context.Background(), foreign[0], foreign[1], time.Second); ReasonOf(err) != ReasonInvalidReply {
			t.Errorf("%q: %v", foreign, err)
		}
	}
}
