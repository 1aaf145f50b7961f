// Package digest computes the digests of tensors where they are mapped. It uses cgo and libxxhash,
// and the package ckptd does not.
package digest

/*
#cgo LDFLAGS: -lxxhash
#include <xxhash.h>
*/
import "C"

import (
	"context"
	"encoding/binary"
	"unsafe"

	"ckptd"

	"google.golang.org/grpc/codes"
)

const block = 1 << 20

func hash(data []byte) uint64 {
	if len(data) == 0 {
		return uint64(C.XXH3_64bits(nil, 0))
	}
	return uint64(C.XXH3_64bits(unsafe.Pointer(&data[0]), C.size_t(len(data))))
}

// Sum is the digest of a tensor's bytes: their XXH3, and of long ones that of the row of XXH3 of
// their blocks of 1 MiB.
func Sum(data []byte) uint64 {
	if len(data) <= block {
		return hash(data)
	}
	var row []byte
	for len(data) > 0 {
		size := len(data)
		if size > block {
			size = block
		}
		row = binary.LittleEndian.AppendUint64(row, hash(data[:size]))
		data = data[size:]
	}
	return hash(row)
}

// Mismatched names the tensors whose bytes are not those that were loaded.
func Mismatched(ctx context.Context, shard *ckptd.Shard) ([]string, error) {
	var names []string
	for _, tensor := range shard.Tensors() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !tensor.HasDigest {
			return nil, &ckptd.Error{Code: codes.FailedPrecondition, Reason: ckptd.ReasonNoDigests,
				Message: "verifying " + shard.Checkpoint() + ": it was loaded without digests; load it with them"}
		}
		if Sum(tensor.Data) != tensor.Digest {
			names = append(names, tensor.Name)
		}
	}
	return names, nil
}
