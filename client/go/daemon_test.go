//go:build daemon

// Tests beside a daemon of rank 0 of 2, whose address and a source are in the environment.
// tests/integration/test_go_client.py starts it.
package ckptd_test

import (
	"context"
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"ckptd"
	"ckptd/digest"
	v1 "ckptd/v1"

	"google.golang.org/protobuf/types/known/durationpb"
)

const patience = time.Minute

var (
	shared    = v1.AttachMode_ATTACH_MODE_SHARED
	private   = v1.AttachMode_ATTACH_MODE_PRIVATE
	exclusive = v1.AttachMode_ATTACH_MODE_EXCLUSIVE
)

func connect(t *testing.T) (context.Context, *ckptd.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	client, err := ckptd.Connect(ctx, ckptd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return ctx, client
}

func spec(rules string, mode v1.AttachMode) *v1.LoadSpec {
	return &v1.LoadSpec{Source: os.Getenv("CKPTD_TEST_SOURCE"), Layout: &v1.Layout{Form: &v1.Layout_Rules{Rules: rules}}, IntendedMode: mode}
}

func load(t *testing.T, mode v1.AttachMode) (context.Context, *ckptd.Client, string) {
	ctx, client := connect(t)
	found, err := client.Load(ctx, spec("replicate:2", mode), nil)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, client, found.Name
}

func acquire(t *testing.T, ctx context.Context, client *ckptd.Client, name string, options ckptd.AcquireOptions) *ckptd.Shard {
	shard, err := client.Acquire(ctx, name, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shard.Close)
	return shard
}

func wants(t *testing.T, err error, reason string) {
	t.Helper()
	if ckptd.ReasonOf(err) != reason {
		t.Errorf("%v, not %s", err, reason)
	}
}

// large is a tensor that lies in several segments.
func large(t *testing.T, shard *ckptd.Shard) ckptd.Tensor {
	found, ok := shard.Tensor("large")
	if !ok {
		t.Fatal("there is no tensor large")
	}
	return found
}

func isWhole(t *testing.T, shard *ckptd.Shard) {
	t.Helper()
	if wrong, err := digest.Mismatched(context.Background(), shard); err != nil || len(wrong) > 0 {
		t.Error(wrong, err)
	}
}

func TestDaemonLendsSharedMemory(t *testing.T) {
	ctx, client, name := load(t, shared)
	shard := acquire(t, ctx, client, name, ckptd.AcquireOptions{})
	isWhole(t, shard)
	if shard.Mode() != shared || len(shard.Tensors()) == 0 || shard.Checkpoint() != name {
		t.Error(shard.Mode())
	}
	answer, err := client.Verify(ctx, name)
	if err != nil || len(answer.Mismatched) > 0 || answer.TensorCount != uint64(len(shard.Tensors())) {
		t.Error(answer, err)
	}
}

func TestDaemonDoesNotSeeWhatIsWrittenToPrivateMemory(t *testing.T) {
	ctx, client, name := load(t, private)
	shard := acquire(t, ctx, client, name, ckptd.AcquireOptions{Mode: private})
	large(t, shard).Data[3<<20]++
	if wrong, err := digest.Mismatched(ctx, shard); err != nil || len(wrong) != 1 || wrong[0] != "large" {
		t.Error(wrong, err)
	}
	if answer, err := client.Verify(ctx, name); err != nil || len(answer.Mismatched) > 0 {
		t.Error(answer, err)
	}
	isWhole(t, acquire(t, ctx, client, name, ckptd.AcquireOptions{Mode: private}))
}

func TestDaemonGivesExclusiveMemoryUp(t *testing.T) {
	ctx, client, name := load(t, exclusive)
	shard := acquire(t, ctx, client, name, ckptd.AcquireOptions{Mode: exclusive})
	isWhole(t, shard)
	large(t, shard).Data[0]++
	// The daemon says so once all descriptors have gone, which a client may see before.
	found, err := client.Get(ctx, name)
	for err == nil && found.State == v1.Checkpoint_STATE_ACTIVE {
		found, err = client.Get(ctx, name)
	}
	if err != nil || found.State != v1.Checkpoint_STATE_TAKEN {
		t.Fatal(found, err)
	}
	wants(t, ckptd.CheckActive(found), ckptd.ReasonTaken)
	_, err = client.Acquire(ctx, name, ckptd.AcquireOptions{Mode: exclusive})
	wants(t, err, ckptd.ReasonTaken)
}

func TestDaemonsTableComesInPages(t *testing.T) {
	ctx, client, name := load(t, shared)
	whole := acquire(t, ctx, client, name, ckptd.AcquireOptions{})
	pages := acquire(t, ctx, client, name, ckptd.AcquireOptions{PageSize: 3, SkipPopulate: true})
	isWhole(t, pages)
	if len(whole.Tensors()) < 7 || len(whole.Tensors()) != len(pages.Tensors()) {
		t.Fatal(len(whole.Tensors()), len(pages.Tensors()))
	}
	for i, tensor := range pages.Tensors() {
		same := whole.Tensors()[i]
		if tensor.Name != same.Name || tensor.Digest != same.Digest || tensor.Offset != same.Offset || !reflect.DeepEqual(tensor.Shape, same.Shape) {
			t.Error(tensor.Name, same.Name)
		}
	}
}

func TestDaemonEndsALeaseWithItsConnection(t *testing.T) {
	ctx, client, name := load(t, shared)
	shard := acquire(t, ctx, client, name, ckptd.AcquireOptions{})
	wants(t, client.Release(ctx, shard.Lease()), ckptd.ReasonLeased)
	shard.Close()
	shard.Close()
	if shard.Tensors() != nil {
		t.Error("a closed shard has tensors")
	}
	if _, ok := shard.Tensor("large"); ok {
		t.Error("a closed shard has a tensor")
	}
	for {
		found, err := client.Get(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if found.LeaseCount == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := client.Release(ctx, shard.Lease()); err != nil {
		t.Error(err)
	}
}

func TestDaemonsShardOutlivesItsClient(t *testing.T) {
	ctx, client, name := load(t, shared)
	shard := acquire(t, ctx, client, name, ckptd.AcquireOptions{})
	client.Close()
	client.Close()
	isWhole(t, shard)
	_, err := client.Get(ctx, name)
	if err == nil {
		t.Error("a closed client has made a call")
	}
}

func TestDaemonsErrorsHaveReasons(t *testing.T) {
	ctx, client := connect(t)
	absent := spec("replicate:2", shared)
	absent.Source += ".absent"
	_, err := client.Load(ctx, absent, nil)
	wants(t, err, ckptd.ReasonSourceNotFound)
	_, err = client.Load(ctx, spec("fsdp:3", shared), nil)
	wants(t, err, ckptd.ReasonWrongWorldSize)
	_, err = client.Load(ctx, spec("no layout", shared), nil)
	wants(t, err, ckptd.ReasonLayoutInvalid)
	_, err = client.Acquire(ctx, "checkpoints/absent", ckptd.AcquireOptions{})
	wants(t, err, ckptd.ReasonCheckpointNotFound)
	_, err = client.Watch(ctx, "checkpoints/absent", nil)
	wants(t, err, ckptd.ReasonCheckpointNotFound)
	wants(t, client.Inspect(ctx, absent.Source, nil), ckptd.ReasonSourceNotFound)
	byName := spec("replicate:2", shared)
	byName.HandleKind = v1.HandleKind_HANDLE_KIND_CUDA_IPC
	_, err = client.Load(ctx, byName, nil)
	wants(t, err, "HANDLE_KIND")
}

// Waits for rank 1, which never submits its tensors.
func halfOfALoad() *v1.LoadSpec {
	whole := spec("", shared)
	whole.Layout.Form = &v1.Layout_RankLayout{RankLayout: &v1.RankLayout{Rank: 0, WorldSize: 2, Shardings: []*v1.Sharding{{}},
		Names: []string{"large"}, ShardingOf: []uint32{0}, Dtypes: []v1.Dtype{0}, RanksOfShape: []uint32{1}, Dims: []uint64{1310720}}}
	return whole
}

func TestDaemonIsNoLongerWatchedWhenItsContextIsCancelled(t *testing.T) {
	ctx, client := connect(t)
	ctx, cancel := context.WithCancel(ctx)
	seen := 0
	_, err := client.Load(ctx, halfOfALoad(), func(found *v1.Checkpoint) {
		if seen++; found.Progress.Stage == v1.Stage_STAGE_GATHERING {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || seen == 0 {
		t.Error(seen, err)
	}
}

func TestDaemonsLoadThatTakesTooLongSaysWhatItWaitsFor(t *testing.T) {
	ctx, client := connect(t)
	started, err := client.Start(ctx, halfOfALoad())
	if err != nil {
		t.Fatal(err)
	}
	var failure *ckptd.Error
	// On a busy machine nothing may come in a short time.
	for timeout, heard := 100*time.Millisecond, false; !heard; timeout *= 4 {
		short, cancel := context.WithTimeout(ctx, timeout)
		_, err = client.Watch(short, started.Checkpoint.Name, func(*v1.Checkpoint) { heard = true })
		cancel()
	}
	if !errors.As(err, &failure) || failure.Reason != ckptd.ReasonDeadline || !errors.Is(err, context.DeadlineExceeded) ||
		failure.Facts["stage"] != "GATHERING" {
		t.Error(err)
	}
}

func TestDaemonEndsALoadAtItsOwnTimeout(t *testing.T) {
	ctx, client := connect(t)
	half := halfOfALoad()
	half.Timeout = durationpb.New(100 * time.Millisecond)
	_, err := client.Load(ctx, half, nil)
	if reason := ckptd.ReasonOf(err); reason != ckptd.ReasonRankMissing && reason != ckptd.ReasonDeadline {
		t.Error(err)
	}
}

func TestDaemonAnswersWhatItHoldsAndReads(t *testing.T) {
	ctx, client, name := load(t, shared)
	all, err := client.List(ctx)
	if err != nil || all.WorldSize != 2 || len(all.Checkpoints) == 0 {
		t.Error(all, err)
	}
	found, err := client.Watch(ctx, name, nil)
	if err != nil || found.State != v1.Checkpoint_STATE_ACTIVE {
		t.Error(found, err)
	}
	tensors := 0
	err = client.Inspect(ctx, os.Getenv("CKPTD_TEST_SOURCE"), func(page *v1.InspectCheckpointResponse) error {
		tensors += len(page.GetIndex().GetTensors().GetNames())
		return nil
	})
	if err != nil || tensors < 7 {
		t.Error(tensors, err)
	}
	plan, err := client.Plan(ctx, spec("replicate:2", shared))
	if err != nil || len(plan.Ranks) != 2 {
		t.Error(plan, err)
	}
}
