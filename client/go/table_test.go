package ckptd

import (
	"math"
	"strings"
	"testing"
	"unsafe"

	v1 "ckptd/v1"

	"google.golang.org/protobuf/proto"
)

const slabOfTests = 4096

// page has two tensors, a further name and a flat parameter.
func page() *v1.TensorTable {
	return &v1.TensorTable{
		Names: []string{"a", "b"}, Dtypes: []v1.Dtype{v1.Dtype_DTYPE_F32, v1.Dtype_DTYPE_F4},
		RanksOfShape: []uint32{2, 1}, Dims: []uint64{3, 5, 8}, Offsets: []uint64{0, 512}, Bytes: []uint64{60, 4},
		PaddedBytes: []uint64{80, 4}, Digests: []uint64{1, 2}, AliasNames: []string{"c"}, AliasTensors: []uint32{1},
		FlatNames: []string{"f"}, FlatDtypes: []v1.Dtype{v1.Dtype_DTYPE_BF16}, FlatOffsets: []uint64{1024}, FlatElements: []uint64{8},
	}
}

func TestATableIsReadPageByPage(t *testing.T) {
	found := newTable("reading", slabOfTests)
	second := page()
	second.Names, second.AliasNames = []string{"x", "y"}, []string{"z"}
	for _, part := range []*v1.TensorTable{page(), second} {
		if err := found.add(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := found.finish(4); err != nil {
		t.Fatal(err)
	}
	found.place(make([]byte, slabOfTests))
	z := found.tensors[found.index["z"]]
	if z.Name != "y" || len(z.Data) != 4 || z.Digest != 2 || cap(z.Padded) != 4 {
		t.Errorf("%+v", z)
	}
	if a := found.tensors[0]; len(a.Data) != 60 || len(a.Padded) != 80 || len(a.Shape) != 2 || len(found.flats) != 2 {
		t.Errorf("%+v", a)
	}
}

func TestATableThatCannotBeTrueIsRefused(t *testing.T) {
	cases := map[string]func(*v1.TensorTable){
		"short dtypes":          func(p *v1.TensorTable) { p.Dtypes = p.Dtypes[:1] },
		"short ranks":           func(p *v1.TensorTable) { p.RanksOfShape = p.RanksOfShape[:1] },
		"short offsets":         func(p *v1.TensorTable) { p.Offsets = nil },
		"short bytes":           func(p *v1.TensorTable) { p.Bytes = p.Bytes[:1] },
		"short padded":          func(p *v1.TensorTable) { p.PaddedBytes = p.PaddedBytes[:1] },
		"digests of some":       func(p *v1.TensorTable) { p.Digests = p.Digests[:1] },
		"too few sizes":         func(p *v1.TensorTable) { p.Dims = p.Dims[:2] },
		"too many sizes":        func(p *v1.TensorTable) { p.Dims = append(p.Dims, 1) },
		"many dimensions":       func(p *v1.TensorTable) { p.RanksOfShape[0] = math.MaxUint32 },
		"unknown dtype":         func(p *v1.TensorTable) { p.Dtypes[0] = 99 },
		"no dtype":              func(p *v1.TensorTable) { p.Dtypes[0] = 0 },
		"negative dtype":        func(p *v1.TensorTable) { p.Dtypes[0] = -1 },
		"other bytes":           func(p *v1.TensorTable) { p.Bytes[0] = 56 },
		"half a byte":           func(p *v1.TensorTable) { p.Dims[2], p.Bytes[1] = 7, 3 },
		"overflowing shape":     func(p *v1.TensorTable) { p.Dims[0], p.Dims[1], p.Bytes[0] = 1<<40, 1<<40, 0 },
		"before its alignment":  func(p *v1.TensorTable) { p.Offsets[0] = 2 },
		"behind the slab":       func(p *v1.TensorTable) { p.Offsets[0] = slabOfTests - 64 },
		"far behind the slab":   func(p *v1.TensorTable) { p.Offsets[0] = math.MaxUint64 - 63 },
		"padding over the slab": func(p *v1.TensorTable) { p.PaddedBytes[0] = math.MaxUint64 },
		"less than no padding":  func(p *v1.TensorTable) { p.PaddedBytes[0] = 40 },
		"alias of nothing":      func(p *v1.TensorTable) { p.AliasTensors[0] = 2 },
		"alias without target":  func(p *v1.TensorTable) { p.AliasTensors = nil },
		"short flats":           func(p *v1.TensorTable) { p.FlatDtypes = nil },
		"flat of no dtype":      func(p *v1.TensorTable) { p.FlatDtypes[0] = 99 },
		"flat behind the slab":  func(p *v1.TensorTable) { p.FlatElements[0] = 1 << 62 },
		"flat that is askew":    func(p *v1.TensorTable) { p.FlatOffsets[0] = 8 },
		"a name twice":          func(p *v1.TensorTable) { p.Names[1] = "a" },
		"alias that is a name":  func(p *v1.TensorTable) { p.AliasNames[0] = "a" },
		"fewer than announced":  func(p *v1.TensorTable) { *p = v1.TensorTable{} },
	}
	for name, spoil := range cases {
		spoilt := proto.Clone(page()).(*v1.TensorTable)
		spoil(spoilt)
		found := newTable("reading", slabOfTests)
		err := found.add(spoilt)
		if err == nil {
			err = found.finish(2)
		}
		if ReasonOf(err) != ReasonInvalidReply {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSegmentsThatAreNoSlabAreRefused(t *testing.T) {
	for _, segments := range [][]uint64{nil, {0, 8192}, {8192, 1}, {4095, 4097}, {math.MaxUint64, 8193}, {4096}} {
		if err := checkSegments(segments, 8192); ReasonOf(err) != ReasonInvalidReply {
			t.Errorf("%v: %v", segments, err)
		}
	}
	if err := checkSegments([]uint64{maxSlab + 4096}, maxSlab+4096); ReasonOf(err) != ReasonInvalidReply {
		t.Error(err)
	}
	for slab, segments := range map[uint64][]uint64{0: nil, 8192: {4096, 4096}, 4100: {4096, 4}} {
		if err := checkSegments(segments, slab); err != nil {
			t.Error(err)
		}
	}
}

func TestAViewHasTheDtypesElements(t *testing.T) {
	data := make([]byte, 16)
	data[3] = 0x40
	halves, err := View[float32](Tensor{Dtype: v1.Dtype_DTYPE_F32, Data: data})
	if err != nil || len(halves) != 4 || halves[0] != 2 {
		t.Error(halves, err)
	}
	if words, err := View[uint16](Tensor{Dtype: v1.Dtype_DTYPE_BF16, Data: data}); err != nil || len(words) != 8 {
		t.Error(words, err)
	}
	if none, err := View[uint8](Tensor{Dtype: v1.Dtype_DTYPE_BOOL}); err != nil || len(none) != 0 {
		t.Error(none, err)
	}
	_, err = View[uint8](Tensor{Name: "w", Dtype: v1.Dtype_DTYPE_F4, Data: data})
	if ReasonOf(err) != ReasonInvalidRequest || !strings.Contains(err.Error(), "F4") {
		t.Error(err)
	}
}

func TestEveryDtypeHasAWidthAndEitherAViewOrHalfBytes(t *testing.T) {
	elements := map[any]uint64{uint8(0): 8, int8(0): 8, uint16(0): 16, int16(0): 16, uint32(0): 32, int32(0): 32, uint64(0): 64, int64(0): 64,
		float32(0): 32, float64(0): 64, complex64(0): 64, complex128(0): 128}
	for number := range v1.Dtype_name {
		dtype, views := v1.Dtype(number), 0
		for element, bits := range elements {
			if fits(element, dtype) {
				if views++; bits != Bits(dtype) {
					t.Errorf("%s as %T", dtype, element)
				}
			}
		}
		if whole := Bits(dtype) >= 8; whole != (views == 1) || number != 0 && Bits(dtype) == 0 {
			t.Errorf("%s: %d bits, %d views", dtype, Bits(dtype), views)
		}
	}
	if unsafe.Sizeof(complex64(0)) != 8 {
		t.Error("complex64")
	}
}
