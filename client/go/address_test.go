package ckptd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "ckptd/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestTheAddressComesFromTheArgumentTheVariableOrTheDefault(t *testing.T) {
	three := 3
	cases := []struct {
		query  Query
		values map[string]string
		path   string
	}{
		{Query{Address: "unix:///run/x.sock"}, map[string]string{"CKPTD_ADDRESS": "/other"}, "/run/x.sock"},
		{Query{Address: "unix:/run/x.sock"}, nil, "/run/x.sock"},
		{Query{}, map[string]string{"CKPTD_ADDRESS": "/r/{rank}-{local_rank}", "RANK": "5", "SLURM_LOCALID": "1"}, "/r/5-1"},
		{Query{Rank: &three}, map[string]string{"CKPTD_ADDRESS": "/r/{rank}", "RANK": "junk"}, "/r/3"},
		{Query{}, map[string]string{"CKPTD_RUN_DIR": "/d", "SLURM_PROCID": "7", "SLURM_JOB_ID": "42"}, "/d/42/rank-7.sock"},
		{Query{Job: "mine"}, map[string]string{"XDG_RUNTIME_DIR": "/x", "CKPTD_JOB": "other"}, "/x/ckptd/mine/rank-0.sock"},
		{Query{}, map[string]string{"CKPTD_RUN_DIR": "/d", "CKPTD_JOB": "j"}, "/d/j/rank-0.sock"},
	}
	for _, c := range cases {
		c.query.Getenv = func(name string) string { return c.values[name] }
		if found, err := Resolve(c.query); err != nil || found.Path != c.path {
			t.Errorf("%s: %v, %v", c.path, found, err)
		}
	}
}

func TestAnAddressThatCannotBeIsRefused(t *testing.T) {
	cases := []struct {
		query  Query
		values map[string]string
	}{
		{Query{Address: "relative.sock"}, nil},
		{Query{Address: "host:1234"}, nil},
		{Query{Address: "/" + strings.Repeat("x", maxSocketPath)}, nil},
		{Query{Address: "/{rank}"}, map[string]string{"RANK": "-1"}},
		{Query{Address: "/{rank}"}, map[string]string{"RANK": "1000001"}},
		{Query{Address: "/{local_rank}"}, map[string]string{"LOCAL_RANK": "one"}},
		{Query{Job: "a/b"}, nil},
		{Query{Job: ".."}, nil},
	}
	for _, c := range cases {
		c.query.Getenv = func(name string) string { return c.values[name] }
		if found, err := Resolve(c.query); ReasonOf(err) != ReasonInvalidRequest {
			t.Errorf("%v: %v, %v", c, found, err)
		}
	}
}

func TestADaemonThatIsNotThereIsNamedWithTheReason(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "rank-0.sock")
	connect := func(ctx context.Context) error {
		_, err := Connect(ctx, Options{Address: Query{Address: path}, Wait: 10 * time.Millisecond})
		return err
	}
	os.WriteFile(filepath.Join(folder, "rank-1.sock"), nil, 0o600)
	err := connect(context.Background())
	if ReasonOf(err) != ReasonDaemonUnreachable || !strings.Contains(err.Error(), "beside those of 1 other") {
		t.Error(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	if err := connect(context.Background()); ReasonOf(err) != ReasonDaemonUnreachable || !strings.Contains(err.Error(), "no daemon listens") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := connect(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// with is a status with that ErrorInfo.
func with(t *testing.T, info *v1.ErrorInfo) error {
	packed, err := anypb.New(info)
	if err != nil {
		t.Fatal(err)
	}
	packed.TypeUrl = errorInfoURL
	from := status.New(codes.NotFound, "sentence").Proto()
	from.Details = append(from.Details, packed)
	return status.FromProto(from).Err()
}

func TestAnErrorHasCodeReasonSentenceAndFacts(t *testing.T) {
	client := &Client{address: Address{Path: "/nowhere"}}
	info := &v1.ErrorInfo{Reason: "SOURCE_NOT_FOUND", Domain: "ckptd", Metadata: map[string]string{"file": "/m"}}
	err := error(client.translate(context.Background(), with(t, info), "loading"))
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != codes.NotFound || failure.Facts["file"] != "/m" ||
		err.Error() != "sentence [SOURCE_NOT_FOUND]" {
		t.Errorf("%#v", err)
	}
}

func TestADaemonWithoutAThreadForACallIsBusy(t *testing.T) {
	client := &Client{address: Address{Path: "/nowhere"}}
	failure := client.translate(context.Background(), status.Error(codes.ResourceExhausted, "Server Threadpool Exhausted"), "loading")
	if failure.Reason != ReasonTooManyWaiting || !strings.Contains(failure.Message, "ask again later") {
		t.Errorf("%#v", failure)
	}
}

func TestDetailsThatAreTooLongOrNoReasonAreNotUsed(t *testing.T) {
	client := &Client{address: Address{Path: "/nowhere"}}
	many := map[string]string{}
	for i := 0; i <= maxFacts; i++ {
		many[fmt.Sprint(i)] = ""
	}
	for _, info := range []*v1.ErrorInfo{{}, {Reason: "not a reason"}, {Reason: strings.Repeat("A", maxReasonBytes+1)},
		{Reason: "A", Metadata: many}, {Reason: "A", Metadata: map[string]string{"": strings.Repeat("x", maxDetailBytes)}}} {
		if failure := client.translate(context.Background(), with(t, info), "loading"); failure.Reason != "NOT_FOUND" {
			t.Error(failure.Reason)
		}
	}
}

func TestCodesAreNamedAsInTheContract(t *testing.T) {
	for code, name := range map[codes.Code]string{codes.OK: "OK", codes.Canceled: "CANCELLED", codes.NotFound: "NOT_FOUND",
		codes.DataLoss: "DATA_LOSS", codes.FailedPrecondition: "FAILED_PRECONDITION"} {
		if CodeName(code) != name {
			t.Error(CodeName(code), name)
		}
	}
}

func TestAPathOfAnyBytesBecomesAURI(t *testing.T) {
	if SourceText("/m ü") != "/m ü" || SourceText("/m/\xff") != "file:///m/%FF" {
		t.Error(SourceText("/m/\xff"))
	}
}
