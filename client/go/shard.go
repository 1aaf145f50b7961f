package ckptd

import (
	"context"
	"strings"
	"sync"

	v1 "ckptd/v1"
)

// AcquireOptions say how a shard is mapped. The zero value means SHARED.
type AcquireOptions struct {
	Mode     v1.AttachMode // UNSPECIFIED: SHARED
	PageSize uint32        // tensors in a page of the table; 0: the daemon chooses
	// SkipPopulate leaves the page tables to be filled by the first reads.
	SkipPopulate bool
}

// Shard is this rank's part of a checkpoint, mapped. It needs no Client once it exists, and its
// memory stays without the daemon. Several goroutines may read it. Close unmaps it and ends the
// lease: nobody may use its tensors' bytes then.
type Shard struct {
	checkpoint string
	lease      string
	mode       v1.AttachMode
	table      *table
	memory     *mapping
	socket     *fdSocket
	mutex      sync.Mutex
	closed     bool
}

// Checkpoint is the name of what it is a shard of.
func (s *Shard) Checkpoint() string { return s.checkpoint }

// Lease is the lease's name.
func (s *Shard) Lease() string { return s.lease }

// Mode is how the memory is mapped.
func (s *Shard) Mode() v1.AttachMode { return s.mode }

// SlabBytes is how long the mapped memory is.
func (s *Shard) SlabBytes() uint64 { return s.table.slab }

// Tensors are in the daemon's order. After Close there are none.
func (s *Shard) Tensors() []Tensor {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return nil
	}
	return s.table.tensors
}

// Tensor finds one by its name, or by a further name of a tied one.
func (s *Shard) Tensor(name string) (Tensor, bool) {
	tensors := s.Tensors()
	i, ok := s.table.index[name]
	if !ok || tensors == nil {
		return Tensor{}, false
	}
	return tensors[i], true
}

// Aliases are further names, and the names of the same tensors.
func (s *Shard) Aliases() map[string]string {
	names := map[string]string{}
	for alias, i := range s.table.aliases {
		names[alias] = s.table.tensors[i].Name
	}
	return names
}

// Flats are this rank's flat parameters, in the order of the request.
func (s *Shard) Flats() []Flat { return s.table.flats }

// Unexpected are tensors of the source that this rank did not submit.
func (s *Shard) Unexpected() []string { return s.table.unexpected }

// Close may be called again.
func (s *Shard) Close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.closed {
		s.closed = true
		s.memory.Close()
		s.socket.Close()
	}
}

// Acquire leases and maps this rank's shard of an ACTIVE checkpoint. All that the daemon says
// about it is checked first.
func (c *Client) Acquire(ctx context.Context, name string, options AcquireOptions) (*Shard, error) {
	if options.Mode == v1.AttachMode_ATTACH_MODE_UNSPECIFIED {
		options.Mode = v1.AttachMode_ATTACH_MODE_SHARED
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	request := &v1.AcquireShardRequest{Name: name, Mode: options.Mode, PageSize: options.PageSize, LoadRequestId: c.loadID(name),
		AcceptedKinds: []v1.HandleKind{v1.HandleKind_HANDLE_KIND_MEMFD}}
	acquired, err := c.acquire(ctx, request)
	if err != nil {
		return nil, err
	}
	shard, err := c.attach(ctx, acquired, name, options)
	if err != nil {
		// A lease without a connection would otherwise last until its token expires.
		c.releaseSoon(acquired.GetLease())
		return nil, err
	}
	return shard, nil
}

func (c *Client) acquire(ctx context.Context, request *v1.AcquireShardRequest) (*v1.AcquireShardResponse, error) {
	doing := "acquiring " + request.Name
	if request.Mode != v1.AttachMode_ATTACH_MODE_EXCLUSIVE {
		return call(ctx, c, c.options.CallTimeout, c.service.AcquireShard, request, doing)
	}
	// An answer that was lost may have handed the memory over.
	acquired, failure := callOnce(ctx, c, c.options.CallTimeout, c.service.AcquireShard, request, doing)
	if failure != nil {
		return nil, failure
	}
	return acquired, nil
}

func (c *Client) releaseSoon(lease string) {
	// The caller's context may have ended. Release has a deadline of its own.
	_ = c.Release(context.Background(), lease)
}

func (c *Client) attach(ctx context.Context, acquired *v1.AcquireShardResponse, name string, options AcquireOptions) (*Shard, error) {
	doing, memfd := "acquiring "+name, acquired.GetMemfd()
	switch {
	// A lease is named after its checkpoint. Another name means other memory.
	case !strings.HasPrefix(acquired.GetLease(), name+"/leases/"):
		return nil, badReply(doing, "it leases %q", acquired.GetLease())
	case acquired.GetMode() != options.Mode:
		return nil, badReply(doing, "it lends %s, not %s", acquired.GetMode(), options.Mode)
	case memfd == nil:
		return nil, badReply(doing, "it offers memory of a kind that this client did not accept")
	}
	memory, err := reserve(memfd.GetSegmentBytes(), acquired.GetSlabBytes(), options.Mode)
	if err != nil {
		return nil, err
	}
	// The token expires soon, so it is shown before further pages are fetched.
	socket, err := openFDSocket(ctx, memfd.GetFdSocket(), acquired.GetToken(), c.options.GoneTimeout)
	if err != nil {
		memory.Close()
		return nil, err
	}
	shard := &Shard{checkpoint: name, lease: acquired.GetLease(), mode: options.Mode, memory: memory, socket: socket}
	if err = socket.receive(ctx, len(memory.segments), memory.add); err == nil {
		shard.table, err = c.readTable(ctx, acquired, name, options.PageSize)
	}
	if err != nil {
		shard.Close()
		return nil, err
	}
	if !options.SkipPopulate {
		memory.populate()
	}
	shard.table.place(memory.slab)
	return shard, nil
}

func (c *Client) readTable(ctx context.Context, acquired *v1.AcquireShardResponse, name string, pageSize uint32) (*table, error) {
	doing := "reading the tensor table of " + name
	found := newTable(doing, acquired.GetSlabBytes())
	if err := found.add(acquired.GetTensors()); err != nil {
		return nil, err
	}
	request := &v1.ListShardTensorsRequest{Name: name, PageSize: pageSize}
	err := paged(ctx, c, acquired.GetNextPageToken(), doing, func(ctx context.Context, token string) (string, error) {
		request.PageToken = token
		page, err := call(ctx, c, c.options.CallTimeout, c.service.ListShardTensors, request, doing)
		if err == nil {
			err = found.add(page.GetTensors())
		}
		return page.GetNextPageToken(), err
	})
	if err == nil {
		err = found.finish(acquired.GetTensorCount())
	}
	return found, err
}
