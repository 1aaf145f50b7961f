// Program ckptd-tensors loads a checkpoint, maps this rank's shard and prints a line of JSON for
// each tensor: an example of how the client is used.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"ckptd"
	"ckptd/digest"
	v1 "ckptd/v1"
)

var modes = map[string]v1.AttachMode{"shared": v1.AttachMode_ATTACH_MODE_SHARED, "private": v1.AttachMode_ATTACH_MODE_PRIVATE,
	"exclusive": v1.AttachMode_ATTACH_MODE_EXCLUSIVE}

type options struct {
	address, layout, mode, out string
	timeout                    time.Duration
	rank                       int
	hold                       bool
}

// line is what is printed of a tensor.
type line struct {
	Name     string   `json:"name"`
	Dtype    string   `json:"dtype"`
	Shape    []uint64 `json:"shape"`
	Bytes    int      `json:"bytes"`
	Digest   string   `json:"digest"`
	Verified bool     `json:"verified"`
}

func main() {
	var o options
	flag.StringVar(&o.address, "address", "", "the daemon's socket; CKPTD_ADDRESS or the default one without it")
	flag.IntVar(&o.rank, "rank", -1, "the rank whose default socket is used; RANK's without it")
	flag.StringVar(&o.layout, "layout", "replicate:1", "fsdp:N, hsdp:RxS, replicate:N, or the text of a layout file")
	flag.StringVar(&o.mode, "mode", "shared", "shared, private or exclusive")
	flag.StringVar(&o.out, "out", "", "also write the tensors' bytes to this file, one behind the other")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for everything")
	flag.BoolVar(&o.hold, "hold", false, "keep the shard until standard input ends, then print the lines again")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: ckptd-tensors [options] SOURCE")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, flag.Arg(0)); err != nil {
		tell(err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, source string) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	mode, ok := modes[o.mode]
	if !ok {
		return fmt.Errorf("reading -mode %s: there is no such mode; use shared, private or exclusive", o.mode)
	}
	query := ckptd.Query{Address: o.address}
	if o.rank >= 0 {
		query.Rank = &o.rank
	}
	client, err := ckptd.Connect(ctx, ckptd.Options{Address: query})
	if err != nil {
		return err
	}
	defer client.Close()
	spec := &v1.LoadSpec{Source: source, Layout: &v1.Layout{Form: &v1.Layout_Rules{Rules: o.layout}}, IntendedMode: mode}
	loaded, err := client.Load(ctx, spec, showProgress)
	if err != nil {
		return err
	}
	shard, err := client.Acquire(ctx, loaded.GetName(), ckptd.AcquireOptions{Mode: mode})
	if err != nil {
		return err
	}
	defer shard.Close()
	if err := show(shard, os.Stdout); err != nil {
		return err
	}
	if o.out != "" {
		if err := write(shard, o.out); err != nil {
			return err
		}
	}
	if o.hold {
		return hold(ctx, shard)
	}
	return nil
}

// hold keeps the shard until standard input ends, and shows then that the memory has stayed.
func hold(ctx context.Context, shard *ckptd.Shard) error {
	fmt.Fprintln(os.Stderr, "holding", shard.Lease())
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			return err
		}
		return show(shard, os.Stdout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func showProgress(found *v1.Checkpoint) {
	progress := found.GetProgress()
	fmt.Fprintf(os.Stderr, "%s %s: %d of %d bytes\n", strings.TrimPrefix(found.GetState().String(), "STATE_"),
		strings.TrimPrefix(progress.GetStage().String(), "STAGE_"), progress.GetBytesDone(), progress.GetBytesTotal())
}

func show(shard *ckptd.Shard, to io.Writer) error {
	out := json.NewEncoder(to)
	for _, tensor := range shard.Tensors() {
		found := line{Name: tensor.Name, Dtype: ckptd.DtypeName(tensor.Dtype), Shape: tensor.Shape, Bytes: len(tensor.Data)}
		if found.Shape == nil {
			found.Shape = []uint64{}
		}
		if tensor.HasDigest {
			found.Digest = fmt.Sprintf("%016x", tensor.Digest)
			found.Verified = digest.Sum(tensor.Data) == tensor.Digest
		}
		if err := out.Encode(found); err != nil {
			return err
		}
	}
	return nil
}

func write(shard *ckptd.Shard, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriter(file)
	for _, tensor := range shard.Tensors() {
		buffered.Write(tensor.Data) // an error stays until Flush
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	return file.Close()
}

func tell(err error) {
	said := map[string]any{"message": err.Error()}
	var failure *ckptd.Error
	if errors.As(err, &failure) {
		said = map[string]any{"code": ckptd.CodeName(failure.Code), "reason": failure.Reason, "message": failure.Message, "facts": failure.Facts}
	}
	json.NewEncoder(os.Stderr).Encode(map[string]any{"error": said})
}
