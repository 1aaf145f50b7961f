package ckptd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	v1 "ckptd/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

const nameOfTests = "checkpoints/a"

// service is a daemon that answers as a test says.
type service struct {
	v1.UnimplementedCheckpointServiceServer
	watch   func(int, v1.CheckpointService_WatchCheckpointServer) error // with the number of watches before
	acquire func(int) (*v1.AcquireShardResponse, error)
	page    func() *v1.ListShardTensorsResponse
	watches int
	asked   int
	gets    int
	release int
}

func (s *service) WatchCheckpoint(_ *v1.WatchCheckpointRequest, stream v1.CheckpointService_WatchCheckpointServer) error {
	s.watches++
	return s.watch(s.watches-1, stream)
}

func (s *service) GetCheckpoint(context.Context, *v1.GetCheckpointRequest) (*v1.GetCheckpointResponse, error) {
	s.gets++
	return &v1.GetCheckpointResponse{Checkpoint: in(v1.Checkpoint_STATE_ACTIVE)}, nil
}

func (s *service) AcquireShard(context.Context, *v1.AcquireShardRequest) (*v1.AcquireShardResponse, error) {
	s.asked++
	return s.acquire(s.asked - 1)
}

func (s *service) ListShardTensors(context.Context, *v1.ListShardTensorsRequest) (*v1.ListShardTensorsResponse, error) {
	return s.page(), nil
}

func (s *service) ReleaseShard(context.Context, *v1.ReleaseShardRequest) (*v1.ReleaseShardResponse, error) {
	s.release++
	return &v1.ReleaseShardResponse{}, nil
}

func in(state v1.Checkpoint_State) *v1.Checkpoint {
	return &v1.Checkpoint{Name: nameOfTests, State: state, Rank: 3}
}

func say(stream v1.CheckpointService_WatchCheckpointServer, state v1.Checkpoint_State) error {
	return stream.Send(&v1.WatchCheckpointResponse{Checkpoint: in(state)})
}

func refused(code codes.Code, reason string) error {
	packed, _ := anypb.New(&v1.ErrorInfo{Reason: reason})
	packed.TypeUrl = errorInfoURL
	from := status.New(code, "no").Proto()
	from.Details = append(from.Details, packed)
	return status.FromProto(from).Err()
}

// clientOf connects to the service.
func clientOf(t *testing.T, answers *service) (context.Context, *Client) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	v1.RegisterCheckpointServiceServer(server, answers)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	client, err := Connect(ctx, Options{Address: Query{Address: path}, GoneTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return ctx, client
}

func TestAWatchGoesOnAfterItsConnectionBroke(t *testing.T) {
	ctx, client := clientOf(t, &service{watch: func(before int, stream v1.CheckpointService_WatchCheckpointServer) error {
		if before == 0 {
			say(stream, v1.Checkpoint_STATE_LOADING)
			return status.Error(codes.Unavailable, "broken")
		}
		return say(stream, v1.Checkpoint_STATE_ACTIVE)
	}})
	var seen []v1.Checkpoint_State
	found, err := client.Watch(ctx, nameOfTests, func(now *v1.Checkpoint) { seen = append(seen, now.State) })
	if err != nil || found.State != v1.Checkpoint_STATE_ACTIVE || len(seen) != 2 {
		t.Error(seen, err)
	}
}

func TestADaemonThatForgotTheLoadIsOneThatWasRestarted(t *testing.T) {
	ctx, client := clientOf(t, &service{watch: func(before int, stream v1.CheckpointService_WatchCheckpointServer) error {
		if before > 0 {
			return refused(codes.NotFound, ReasonCheckpointNotFound)
		}
		say(stream, v1.Checkpoint_STATE_LOADING)
		return status.Error(codes.Unavailable, "broken")
	}})
	if _, err := client.Watch(ctx, nameOfTests, nil); ReasonOf(err) != ReasonRankLost {
		t.Error(err)
	}
}

func TestAWatchOfASilentDaemonEnds(t *testing.T) {
	ctx, client := clientOf(t, &service{watch: func(_ int, stream v1.CheckpointService_WatchCheckpointServer) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	}})
	client.options.GoneTimeout = 200 * time.Millisecond
	_, err := client.Watch(ctx, nameOfTests, nil)
	if ReasonOf(err) != ReasonDaemonUnreachable || errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestALoadThatCannotBeWatchedIsPolled(t *testing.T) {
	answers := &service{watch: func(int, v1.CheckpointService_WatchCheckpointServer) error {
		return refused(codes.ResourceExhausted, ReasonTooManyWaiting)
	}}
	ctx, client := clientOf(t, answers)
	if found, err := client.Watch(ctx, nameOfTests, nil); err != nil || found.State != v1.Checkpoint_STATE_ACTIVE || answers.gets != 1 {
		t.Error(found, err)
	}
}

func lent(mode v1.AttachMode) *v1.AcquireShardResponse {
	return &v1.AcquireShardResponse{Lease: nameOfTests + "/leases/1", Mode: mode, Token: tokenOfTests, Tensors: &v1.TensorTable{},
		Handle: &v1.AcquireShardResponse_Memfd{Memfd: &v1.MemfdHandle{FdSocket: "/nowhere"}}}
}

func TestALeaseThatCannotBeTrueIsRefusedAndReturned(t *testing.T) {
	const shared = v1.AttachMode_ATTACH_MODE_SHARED
	cases := map[string]func(*v1.AcquireShardResponse){
		"another checkpoint": func(a *v1.AcquireShardResponse) { a.Lease = "checkpoints/b/leases/1" },
		"another mode":       func(a *v1.AcquireShardResponse) { a.Mode = v1.AttachMode_ATTACH_MODE_EXCLUSIVE },
		"no memory":          func(a *v1.AcquireShardResponse) { a.Handle = nil },
		"no segments":        func(a *v1.AcquireShardResponse) { a.SlabBytes = 4096 },
		"no token":           func(a *v1.AcquireShardResponse) { a.Token = "" },
	}
	for what, spoil := range cases {
		answers := &service{acquire: func(int) (*v1.AcquireShardResponse, error) {
			answer := lent(shared)
			spoil(answer)
			return answer, nil
		}}
		ctx, client := clientOf(t, answers)
		if _, err := client.Acquire(ctx, nameOfTests, AcquireOptions{}); ReasonOf(err) != ReasonInvalidReply || answers.release != 1 {
			t.Errorf("%s: %v, %d", what, err, answers.release)
		}
	}
}

func TestPagesThatDoNotEndAreLeft(t *testing.T) {
	path := daemon(t, message{"CKP1", 0, 0, 0, nil, ""})
	answers := &service{acquire: func(int) (*v1.AcquireShardResponse, error) {
		answer := lent(v1.AttachMode_ATTACH_MODE_SHARED)
		answer.GetMemfd().FdSocket, answer.NextPageToken = path, "0"
		return answer, nil
	}, page: func() *v1.ListShardTensorsResponse {
		return &v1.ListShardTensorsResponse{Tensors: &v1.TensorTable{}, NextPageToken: "1"}
	}}
	ctx, client := clientOf(t, answers)
	client.options.CallTimeout = 200 * time.Millisecond
	if _, err := client.Acquire(ctx, nameOfTests, AcquireOptions{}); ReasonOf(err) != ReasonDeadline {
		t.Error(err)
	}
}

func TestOnlyWhatMayRunTwiceIsRepeated(t *testing.T) {
	for mode, times := range map[v1.AttachMode]int{v1.AttachMode_ATTACH_MODE_PRIVATE: 2, v1.AttachMode_ATTACH_MODE_EXCLUSIVE: 1} {
		answers := &service{acquire: func(before int) (*v1.AcquireShardResponse, error) {
			if before == 0 {
				return nil, status.Error(codes.Unavailable, "broken")
			}
			return nil, refused(codes.NotFound, ReasonCheckpointNotFound)
		}}
		ctx, client := clientOf(t, answers)
		if _, err := client.Acquire(ctx, nameOfTests, AcquireOptions{Mode: mode}); err == nil || answers.asked != times {
			t.Errorf("%s: asked %d times, %v", mode, answers.asked, err)
		}
	}
}

func TestAFailedLoadHasItsOwnFailure(t *testing.T) {
	failed := in(v1.Checkpoint_STATE_FAILED)
	failed.Failure = &v1.Failure{Code: int32(codes.DataLoss), Reason: ReasonSourceInvalid, Message: "sentence", Rank: 1}
	var failure *Error
	if err := CheckActive(failed); !errors.As(err, &failure) || failure.Code != codes.DataLoss || failure.Reason != ReasonSourceInvalid {
		t.Error(err)
	}
	for state, reason := range map[v1.Checkpoint_State]string{v1.Checkpoint_STATE_FAILED: ReasonLoadFailed, v1.Checkpoint_STATE_TAKEN: ReasonTaken,
		v1.Checkpoint_STATE_LOADING: ReasonNotActive, 99: ReasonNotActive} {
		if err := CheckActive(in(state)); ReasonOf(err) != reason {
			t.Error(fmt.Sprint(state), err)
		}
	}
}
