package ckptd

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"google.golang.org/grpc/codes"

	v1 "ckptd/v1"
)

const (
	// No machine maps more. A larger figure is an invalid answer.
	maxSlab     = 1 << 46
	maxSegments = 1 << 20
	// Huge pages need addresses congruent to the file's offset modulo this.
	hugePage         = 2 << 20
	madvPopulateRead = 22
)

// mapping is a range of addresses into which the segments of a slab are mapped back to back.
type mapping struct {
	reserved []byte
	slab     []byte // the part of it that begins at a huge page
	segments []uint64
	next     int
	offset   uint64
	access   int
	sharing  int
}

func checkSegments(segments []uint64, slab uint64) error {
	const doing = "mapping a shard"
	if slab > maxSlab || len(segments) > maxSegments {
		return badReply(doing, "%d bytes in %d segments is more than any machine can map", slab, len(segments))
	}
	left, page := slab, uint64(os.Getpagesize())
	for i, bytes := range segments {
		if bytes == 0 || bytes > left {
			return badReply(doing, "segment %d has %d bytes, where %d of the slab's %d are left", i, bytes, left, slab)
		}
		if left -= bytes; bytes%page != 0 && i+1 < len(segments) {
			return badReply(doing, "segment %d is no whole number of pages, so the next cannot follow it", i)
		}
	}
	if left != 0 {
		return badReply(doing, "the segments lack %d of the slab's %d bytes", left, slab)
	}
	return nil
}

// reserve takes addresses, and no memory yet.
func reserve(segments []uint64, slab uint64, mode v1.AttachMode) (*mapping, error) {
	if err := checkSegments(segments, slab); err != nil {
		return nil, err
	}
	m := &mapping{segments: segments, access: syscall.PROT_READ, sharing: syscall.MAP_SHARED}
	if mode != v1.AttachMode_ATTACH_MODE_SHARED {
		m.access |= syscall.PROT_WRITE
	}
	if mode == v1.AttachMode_ATTACH_MODE_PRIVATE {
		m.sharing = syscall.MAP_PRIVATE
	}
	if slab == 0 {
		return m, nil
	}
	reserved, err := syscall.Mmap(-1, 0, int(slab)+hugePage, syscall.PROT_NONE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, mappingFailed(fmt.Sprintf("reserving %d bytes of addresses", slab), err)
	}
	begin := int(-uintptr(unsafe.Pointer(&reserved[0])) % hugePage)
	m.reserved, m.slab = reserved, reserved[begin:begin+int(slab):begin+int(slab)]
	return m, nil
}

// add maps the next segment. The descriptor stays the caller's.
func (m *mapping) add(fd int) error {
	if m.next == len(m.segments) {
		return badReply("mapping a shard", "more descriptors came than there are segments")
	}
	bytes := m.segments[m.next]
	var found syscall.Stat_t
	if err := syscall.Fstat(fd, &found); err != nil {
		return mappingFailed("asking for the size of a segment", err)
	}
	// To touch pages beyond a file's end is SIGBUS.
	if uint64(found.Size) < bytes {
		return badReply("mapping a shard", "segment %d has %d bytes, %d were announced", m.next, found.Size, bytes)
	}
	at := uintptr(unsafe.Pointer(&m.slab[m.offset]))
	_, _, failed := syscall.Syscall6(syscall.SYS_MMAP, at, uintptr(bytes), uintptr(m.access),
		uintptr(m.sharing|syscall.MAP_FIXED), uintptr(fd), 0)
	if failed != 0 {
		return mappingFailed(fmt.Sprintf("mapping segment %d of %d bytes", m.next, bytes), failed)
	}
	m.next++
	m.offset += bytes
	return nil
}

// populate fills the page tables by one call instead of a fault per page. It is a hint.
func (m *mapping) populate() {
	if len(m.slab) > 0 {
		syscall.Madvise(m.slab, madvPopulateRead)
	}
}

// Close may be called again.
func (m *mapping) Close() {
	if m.reserved != nil {
		syscall.Munmap(m.reserved)
	}
	m.reserved, m.slab = nil, nil
}

func mappingFailed(doing string, err error) error {
	if err == error(syscall.ENOMEM) {
		return makeError(codes.ResourceExhausted, ReasonNoMemory, "mapping a shard: %s: %s; raise ulimit -v or vm.max_map_count", doing, err)
	}
	return makeError(codes.Internal, CodeName(codes.Internal), "mapping a shard: %s: %s", doing, err)
}
