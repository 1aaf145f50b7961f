package ckptd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	tokenChars    = 32
	headerBytes   = 16
	maxPerMessage = 128
	maxSentence   = 64 << 10
	fdBytes       = 4
)

// fdSocket is a connection to the daemon's fd socket. While it is open, it is the lease.
type fdSocket struct {
	path       string
	connection *net.UnixConn
	silence    time.Duration // after which the daemon counts as stopped: it sends each message at once
}

func (s *fdSocket) doing() string { return "fetching a shard's memory at " + s.path }

// openFDSocket connects and shows the token.
func openFDSocket(ctx context.Context, path, token string, silence time.Duration) (*fdSocket, error) {
	s := &fdSocket{path: path, silence: silence}
	if len(token) != tokenChars || strings.Trim(token, "0123456789abcdefABCDEF") != "" {
		return nil, badReply(s.doing(), "the token is not %d hex characters", tokenChars)
	}
	if !strings.HasPrefix(path, "/") || len(path) > maxSocketPath {
		return nil, badReply(s.doing(), "this is no absolute path of a socket")
	}
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	connection, err := dial(ctx, path)
	if err != nil {
		return nil, unreachable(Address{path, "named by the daemon"}, err)
	}
	s.connection = connection
	connection.SetWriteDeadline(time.Now().Add(silence))
	if _, err := connection.Write([]byte(token)); err != nil {
		connection.Close()
		return nil, s.failed(ctx, err)
	}
	return s, nil
}

// Close ends the lease.
func (s *fdSocket) Close() { s.connection.Close() }

// receive calls use(fd) for each of `count` descriptors, in order, and closes it thereafter. Only
// those of one message are open at a time. When ctx ends, receive does.
func (s *fdSocket) receive(ctx context.Context, count int, use func(fd int) error) error {
	defer s.interruptWith(ctx)()
	for first := true; first || count > 0; first = false {
		if err := s.setDeadline(ctx); err != nil {
			return err
		}
		fds, toCome, err := s.message(ctx)
		if err != nil {
			return err
		}
		switch {
		case len(fds) > count || toCome != count-len(fds):
			err = badReply(s.doing(), "%d descriptors came and %d are to come, where %d were missing", len(fds), toCome, count)
		case len(fds) == 0 && count > 0:
			err = badReply(s.doing(), "a message carried no descriptors while some are still due")
		}
		if err = useAll(fds, use, err); err != nil {
			return err
		}
		count -= len(fds)
	}
	return s.connection.SetDeadline(time.Time{})
}

// useAll closes all of them, whatever happens.
func useAll(fds []int, use func(int) error, failed error) error {
	for _, fd := range fds {
		if failed == nil {
			failed = use(fd)
		}
		syscall.Close(fd)
	}
	return failed
}

func (s *fdSocket) setDeadline(ctx context.Context) error {
	until := time.Now().Add(s.silence)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	s.connection.SetDeadline(until)
	// If ctx ended before that line, the goroutine's deadline has been overwritten.
	if ctx.Err() != nil {
		return cancelled(ctx, s.doing())
	}
	return nil
}

// interruptWith ends reads when ctx is cancelled, until the function that it returns is called.
func (s *fdSocket) interruptWith(ctx context.Context) func() {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
			s.connection.SetDeadline(time.Unix(1, 0))
		case <-done:
		}
	}()
	return func() { close(done); <-ended }
}

// message reads one header. Its descriptors are the caller's then.
func (s *fdSocket) message(ctx context.Context) ([]int, int, error) {
	header, space := make([]byte, headerBytes), make([]byte, syscall.CmsgSpace(maxPerMessage*fdBytes))
	// Go sets MSG_CMSG_CLOEXEC.
	n, spaceUsed, flags, _, err := s.connection.ReadMsgUnix(header, space)
	if err != nil {
		return nil, 0, s.failed(ctx, err)
	}
	fds := descriptors(space[:spaceUsed])
	toCome, err := s.check(ctx, header, n, flags, len(fds))
	if err != nil {
		useAll(fds, nil, err)
		return nil, 0, err
	}
	return fds, toCome, nil
}

func descriptors(space []byte) []int {
	messages, _ := syscall.ParseSocketControlMessage(space)
	var fds []int
	for i := range messages {
		if some, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, some...)
		}
	}
	return fds
}

// check reads the rest of a header and returns how many descriptors are to come.
func (s *fdSocket) check(ctx context.Context, header []byte, n, flags, fds int) (int, error) {
	if flags&syscall.MSG_CTRUNC != 0 && fds < maxPerMessage {
		return 0, makeError(codes.ResourceExhausted, ReasonNoMemory, "%s: this process has no room for the descriptors that came; "+
			"raise ulimit -n", s.doing())
	}
	if flags&syscall.MSG_CTRUNC != 0 {
		return 0, badReply(s.doing(), "more than %d descriptors came in one message", maxPerMessage)
	}
	if _, err := io.ReadFull(s.connection, header[n:]); err != nil {
		return 0, s.failed(ctx, err)
	}
	if string(header[:4]) != "CKP1" {
		return 0, badReply(s.doing(), "the answer starts with %q", header[:4])
	}
	status, here, toCome := number32(header[4:]), number32(header[8:]), number32(header[12:])
	if status != 0 {
		return 0, s.refusal(ctx, status)
	}
	if int(here) != fds {
		return 0, badReply(s.doing(), "it announced %d descriptors and sent %d", here, fds)
	}
	if toCome > maxSegments {
		return 0, badReply(s.doing(), "it announces %d descriptors", toCome)
	}
	return int(toCome), nil
}

func number32(bytes []byte) uint32 { return binary.LittleEndian.Uint32(bytes) }

// refusal reads the sentence. The protocol carries no reason; UNAUTHENTICATED says it by itself.
func (s *fdSocket) refusal(ctx context.Context, status uint32) error {
	length := make([]byte, 4)
	if _, err := io.ReadFull(s.connection, length); err != nil {
		return s.failed(ctx, err)
	}
	if status > uint32(codes.Unauthenticated) || number32(length) > maxSentence {
		return badReply(s.doing(), "its refusal has status %d and %d bytes", status, number32(length))
	}
	sentence := make([]byte, number32(length))
	if _, err := io.ReadFull(s.connection, sentence); err != nil {
		return s.failed(ctx, err)
	}
	code, reason := codes.Code(status), CodeName(codes.Code(status))
	if code == codes.Unauthenticated {
		reason = ReasonTokenInvalid
	}
	return makeError(code, reason, "%s: %s", s.doing(), strings.ToValidUTF8(string(sentence), "?"))
}

func (s *fdSocket) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return cancelled(ctx, s.doing())
	case errors.Is(err, os.ErrDeadlineExceeded):
		return makeError(codes.Unavailable, ReasonDaemonUnreachable, "%s: nothing came for %s; see whether the daemon is stopped or "+
			"overloaded, and its log", s.doing(), s.silence)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return badReply(s.doing(), "it closed the connection in the middle of an answer")
	}
	return makeError(codes.Unavailable, ReasonDaemonUnreachable, "%s: %s; see the daemon's log, and acquire again", s.doing(), err)
}
