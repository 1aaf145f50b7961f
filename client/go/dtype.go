package ckptd

import (
	"strings"
	"unsafe"

	v1 "ckptd/v1"
)

const (
	maxDims       = 256
	flatAlignment = 512
)

// Index: v1.Dtype. 0 is no dtype.
var bitsOf = [...]uint64{0, 8, 4, 6, 6, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64, 32, 128, 8, 16}

// Bits of one element; 0 for a dtype that this client does not know.
func Bits(dtype v1.Dtype) uint64 {
	if dtype < 0 || int(dtype) >= len(bitsOf) {
		return 0
	}
	return bitsOf[dtype]
}

// DtypeName is the dtype's name in a safetensors header, such as "BF16".
func DtypeName(dtype v1.Dtype) string { return strings.TrimPrefix(dtype.String(), "DTYPE_") }

// Element is a Go type that has the bytes of a dtype.
type Element interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | float32 | float64 | complex64 |
		complex128
}

// View is a tensor's elements where they lie, without a copy. T has the same bytes: float32 for F32
// and so on, uint16 for F16, BF16 and BITS16, uint32 for C32, uint8 for BOOL, BITS8 and 8-bit floats. Elements smaller than a byte
// have no view: use Data. Views end with the shard, as Data does.
func View[T Element](tensor Tensor) ([]T, error) {
	var zero T
	if !fits(any(zero), tensor.Dtype) {
		return nil, invalid("tensor", tensor.Name, "viewing tensor %s: it is %s, whose elements are no %T", tensor.Name,
			DtypeName(tensor.Dtype), zero)
	}
	if len(tensor.Data) == 0 {
		return nil, nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&tensor.Data[0])), len(tensor.Data)/int(unsafe.Sizeof(zero))), nil
}

func fits(element any, dtype v1.Dtype) bool {
	switch element.(type) {
	case int8:
		return dtype == v1.Dtype_DTYPE_I8
	case int16:
		return dtype == v1.Dtype_DTYPE_I16
	case int32:
		return dtype == v1.Dtype_DTYPE_I32
	case int64:
		return dtype == v1.Dtype_DTYPE_I64
	case float32:
		return dtype == v1.Dtype_DTYPE_F32
	case float64:
		return dtype == v1.Dtype_DTYPE_F64
	case complex64:
		return dtype == v1.Dtype_DTYPE_C64
	case complex128:
		return dtype == v1.Dtype_DTYPE_C128
	case uint32:
		return dtype == v1.Dtype_DTYPE_U32 || dtype == v1.Dtype_DTYPE_C32
	case uint64:
		return dtype == v1.Dtype_DTYPE_U64
	case uint16:
		return dtype == v1.Dtype_DTYPE_U16 || dtype == v1.Dtype_DTYPE_F16 || dtype == v1.Dtype_DTYPE_BF16 ||
			dtype == v1.Dtype_DTYPE_BITS16
	}
	return Bits(dtype) == 8 && dtype != v1.Dtype_DTYPE_I8
}
