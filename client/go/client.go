// Package ckptd is the client of a checkpoint daemon for Go programs: it loads, watches, and maps
// the shard of its rank. All of it has been written from proto/README.md.
package ckptd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	v1 "ckptd/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	defaultLoad   = 10 * time.Minute // the daemon's own
	longestLoad   = 24 * time.Hour
	verifyTimeout = 10 * time.Minute
	firstPause    = 50 * time.Millisecond
	longestPause  = time.Second
	pollPause     = 500 * time.Millisecond // for a load that cannot be watched
	maxMessage    = 64 << 20               // a source's metadata comes in one message
	maxHeaders    = 256 << 10              // details of errors are headers
	maxPages      = 1 << 16                // more than any table has; ends a daemon's endless pages
)

// Options of a client. The zero value is good for trainers.
type Options struct {
	Address Query
	Wait    time.Duration // for a daemon that is starting; 0: 5 s
	// CallTimeout is the most that one call takes whose context allows more; 0: 30 s. Watching and
	// verifying take as long as their context allows, but at most 24 h and 10 min.
	CallTimeout time.Duration
	// GoneTimeout is how long a daemon may be away, as during a restart, or silent, before a call
	// fails; 0: 8 s.
	GoneTimeout time.Duration
}

// Client talks to one daemon. All its methods may be called from several goroutines.
type Client struct {
	address    Address
	options    Options
	connection *grpc.ClientConn
	service    v1.CheckpointServiceClient
	close      sync.Once
	mutex      sync.Mutex
	loadIDs    map[string]string // checkpoint -> request id of its last load, for which the daemon keeps the shard
}

// Connect finds the daemon of this process and waits for it as long as Options.Wait.
func Connect(ctx context.Context, options Options) (*Client, error) {
	setDefault(&options.Wait, 5*time.Second)
	setDefault(&options.CallTimeout, 30*time.Second)
	setDefault(&options.GoneTimeout, 8*time.Second)
	address, err := Resolve(options.Address)
	if err != nil {
		return nil, err
	}
	if err := awaitListening(ctx, address, options.Wait); err != nil {
		return nil, err
	}
	// This version of gRPC has no resolver of Unix sockets that knows about owners.
	connection, err := grpc.Dial("passthrough:///ckptd", grpc.WithInsecure(), grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, address.Path) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: longestPause,
			Backoff: backoff.Config{BaseDelay: 2 * firstPause, Multiplier: 1.6, MaxDelay: longestPause}}))
	if err != nil {
		return nil, unreachable(address, err)
	}
	return &Client{address: address, options: options, connection: connection,
		service: v1.NewCheckpointServiceClient(connection), loadIDs: map[string]string{}}, nil
}

func setDefault(value *time.Duration, otherwise time.Duration) {
	if *value == 0 {
		*value = otherwise
	}
}

// Address is that of the daemon.
func (c *Client) Address() Address { return c.address }

// Service has the calls that need no client, such as JoinLoad. Their errors are gRPC's.
func (c *Client) Service() v1.CheckpointServiceClient { return c.service }

// Close ends the connection to the service. Shards stay: each has a connection of its own.
func (c *Client) Close() {
	c.close.Do(func() { c.connection.Close() })
}

type method[Q, A any] func(context.Context, Q, ...grpc.CallOption) (A, error)

// callOnce makes one call, which ends within `timeout`.
func callOnce[Q, A any](ctx context.Context, c *Client, timeout time.Duration, call method[Q, A], request Q, doing string) (A, *Error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := call(ctx, request)
	if err != nil {
		return answer, c.translate(ctx, err, doing)
	}
	return answer, nil
}

// call is for what may safely run twice: a lost connection is tried again for a while.
func call[Q, A any](ctx context.Context, c *Client, timeout time.Duration, call method[Q, A], request Q, doing string) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	gone := time.Now().Add(c.options.GoneTimeout)
	for pause := firstPause; ; pause *= 2 {
		answer, failure := callOnce(ctx, c, timeout, call, request, doing)
		if failure == nil {
			return answer, nil
		}
		if pause > longestPause {
			pause = longestPause
		}
		if !isTransient(failure) || time.Until(gone) <= pause || !sleep(ctx, pause) {
			return answer, failure
		}
	}
}

// isTransient says whether the connection failed, and not the request.
func isTransient(failure *Error) bool {
	return failure.Reason == ReasonDaemonUnreachable && failure.Code == codes.Unavailable
}

// SourceText is a path as messages hold it: they are UTF-8, so another path becomes a file URI.
func SourceText(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// sendable is a copy of the caller's spec.
func sendable(spec *v1.LoadSpec) *v1.LoadSpec {
	spec = proto.Clone(spec).(*v1.LoadSpec)
	spec.Source = SourceText(spec.Source)
	return spec
}

// Start begins a load, or finds the resident checkpoint, and returns at once. The daemon keeps the
// shard for this client until it acquires it, for 10 s after the load. A spec without a timeout
// gets what ctx allows, at most 10 minutes.
func (c *Client) Start(ctx context.Context, spec *v1.LoadSpec) (*v1.LoadCheckpointResponse, error) {
	spec = sendable(spec)
	if deadline, ok := ctx.Deadline(); ok && spec.Timeout == nil && time.Until(deadline) < defaultLoad {
		spec.Timeout = durationpb.New(time.Until(deadline))
	}
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return nil, makeError(codes.Internal, "INTERNAL", "loading %s: there are no random numbers: %s", spec.Source, err)
	}
	request := &v1.LoadCheckpointRequest{Spec: spec, RequestId: hex.EncodeToString(random)}
	answer, err := call(ctx, c, c.options.CallTimeout, c.service.LoadCheckpoint, request, "loading "+spec.Source)
	if err != nil {
		return nil, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.loadIDs[answer.GetCheckpoint().GetName()] = request.RequestId
	return answer, nil
}

func (c *Client) loadID(name string) string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.loadIDs[name]
}

// Load starts a load, watches it, and returns once the checkpoint is ACTIVE. `progress` may be nil.
// The error of a load that failed is that load's own.
func (c *Client) Load(ctx context.Context, spec *v1.LoadSpec, progress func(*v1.Checkpoint)) (*v1.Checkpoint, error) {
	started, err := c.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	found := started.GetCheckpoint()
	if found.GetState() == v1.Checkpoint_STATE_LOADING {
		if found, err = c.Watch(ctx, found.GetName(), progress); err != nil {
			return nil, err
		}
	}
	return found, CheckActive(found)
}

// CheckActive returns the failure of a checkpoint that cannot be acquired.
func CheckActive(found *v1.Checkpoint) error {
	doing := "loading " + found.GetSource()
	if failure := found.GetFailure(); failure != nil {
		return &Error{Code: codes.Code(failure.GetCode()), Reason: failure.GetReason(), Message: failure.GetMessage(),
			Facts: map[string]string{}}
	}
	switch found.GetState() {
	case v1.Checkpoint_STATE_ACTIVE:
		return nil
	case v1.Checkpoint_STATE_TAKEN:
		return makeError(codes.FailedPrecondition, ReasonTaken, "%s: an EXCLUSIVE client has taken %s; load it again", doing, found.GetName())
	case v1.Checkpoint_STATE_FAILED:
		return makeError(codes.FailedPrecondition, ReasonLoadFailed, "%s: it failed; load it again", doing)
	}
	return makeError(codes.FailedPrecondition, ReasonNotActive, "%s: %s is %s; watch it first", doing, found.GetName(), found.GetState())
}

// Watch follows a load until it is no longer LOADING. It calls `progress`, which may be nil, at each
// change and every two seconds, from this goroutine. It goes on after a connection that broke.
func (c *Client) Watch(ctx context.Context, name string, progress func(*v1.Checkpoint)) (*v1.Checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, longestLoad)
	defer cancel()
	last, heard, doing := &v1.Checkpoint{Name: name}, time.Now(), "watching "+name
	seen := func(found *v1.Checkpoint) {
		last, heard = found, time.Now()
		if progress != nil {
			progress(found)
		}
	}
	lost := false
	for {
		failure := c.follow(ctx, name, doing, seen)
		if failure == nil && last.State != v1.Checkpoint_STATE_LOADING && last.State != v1.Checkpoint_STATE_UNSPECIFIED {
			return last, nil
		}
		if failure != nil {
			if errors.Is(failure, context.DeadlineExceeded) {
				return nil, tooLong(failure, last)
			}
			if lost && failure.Reason == ReasonCheckpointNotFound {
				return nil, makeError(codes.Unavailable, ReasonRankLost,
					"%s: the daemon of rank %d was restarted meanwhile and has forgotten the load; load again", doing, last.Rank)
			}
			if lost = true; !isTransient(failure) || time.Since(heard) > c.options.GoneTimeout {
				return nil, failure
			}
		}
		if !sleep(ctx, firstPause) {
			return nil, cancelled(ctx, doing)
		}
	}
}

// tooLong says what the load was waiting for when time was up.
func tooLong(failure *Error, last *v1.Checkpoint) *Error {
	progress := last.GetProgress()
	stage := strings.TrimPrefix(progress.GetStage().String(), "STAGE_")
	longer := makeError(failure.Code, failure.Reason, "watching %s: not done in time, it is %s, %d of %d bytes, waiting for ranks %v; "+
		"the load goes on, watch it again or look at the daemon's log", last.GetName(), stage, progress.GetBytesDone(),
		progress.GetBytesTotal(), progress.GetWaitingRanks())
	longer.cause = failure.cause
	longer.Facts["checkpoint"], longer.Facts["stage"] = last.GetName(), stage
	return longer
}

// follow reads the daemon's stream, or polls where the daemon has no more streams.
func (c *Client) follow(ctx context.Context, name, doing string, seen func(*v1.Checkpoint)) *Error {
	failure := c.stream(ctx, name, doing, seen)
	for failure != nil && failure.Reason == ReasonTooManyWaiting {
		answer, refused := callOnce(ctx, c, c.options.CallTimeout, c.service.GetCheckpoint, &v1.GetCheckpointRequest{Name: name}, doing)
		if refused != nil {
			return refused
		}
		if seen(answer.GetCheckpoint()); answer.GetCheckpoint().GetState() != v1.Checkpoint_STATE_LOADING {
			return nil
		}
		if !sleep(ctx, pollPause) {
			return cancelled(ctx, doing)
		}
	}
	return failure
}

// stream ends when the daemon has said nothing for a while: it sends a message every two seconds.
func (c *Client) stream(ctx context.Context, name, doing string, seen func(*v1.Checkpoint)) *Error {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	var silent atomic.Bool
	silence := time.AfterFunc(c.options.GoneTimeout, func() { silent.Store(true); cancel() })
	defer silence.Stop()
	stream, err := c.service.WatchCheckpoint(reading, &v1.WatchCheckpointRequest{Name: name, LoadRequestId: c.loadID(name)})
	for err == nil {
		var answer *v1.WatchCheckpointResponse
		if answer, err = stream.Recv(); err == nil {
			silence.Stop() // the time that `seen` takes is not the daemon's
			seen(answer.GetCheckpoint())
			silence.Reset(c.options.GoneTimeout)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case silent.Load():
		return c.silent(doing, "nothing came for "+c.options.GoneTimeout.String())
	}
	return c.translate(ctx, err, doing)
}
