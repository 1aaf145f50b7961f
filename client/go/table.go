package ckptd

import (
	"math/bits"

	v1 "ckptd/v1"
)

// Tensor is one tensor of a shard.
type Tensor struct {
	Name      string
	Dtype     v1.Dtype
	Shape     []uint64 // local; row-major
	Offset    uint64   // in the slab
	Digest    uint64   // see proto/README.md
	HasDigest bool
	// Data has the tensor's bytes, and Padded also the zeros behind them that FSDP2 asks for. They
	// are memory that the shard owns: not valid after its Close, and, if it is SHARED, a write ends
	// the process.
	Data, Padded []byte
	bytes        uint64
	padded       uint64
}

// Flat is this rank's part of a flat parameter. Its members are tensors of the shard and lie in it.
type Flat struct {
	Name     string
	Dtype    v1.Dtype
	Offset   uint64 // in the slab
	Elements uint64 // padding included
}

// table is what the pages of a tensor table hold, checked against the slab.
type table struct {
	doing      string
	slab       uint64
	tensors    []Tensor
	flats      []Flat
	unexpected []string
	aliases    map[string]int
	index      map[string]int // names and further names
}

func newTable(doing string, slab uint64) *table {
	return &table{doing: doing, slab: slab, aliases: map[string]int{}, index: map[string]int{}}
}

// denseBytes is false if the bytes exceed 64 bits or are no whole number.
func denseBytes(dtype v1.Dtype, shape []uint64) (uint64, bool) {
	count := Bits(dtype)
	for _, size := range shape {
		if size == 0 {
			return 0, true
		}
	}
	for _, size := range shape {
		high, low := bits.Mul64(count, size)
		if high != 0 {
			return 0, false
		}
		count = low
	}
	return count / 8, count%8 == 0
}

func (t *table) refuse(format string, arguments ...any) error {
	return badReply(t.doing, format, arguments...)
}

func (t *table) inSlab(offset, bytes uint64) bool { return bytes <= t.slab && offset <= t.slab-bytes }

// add checks a page and takes it.
func (t *table) add(page *v1.TensorTable) error {
	count := len(page.GetNames())
	columns := []int{len(page.GetDtypes()), len(page.GetRanksOfShape()), len(page.GetOffsets()), len(page.GetBytes()), len(page.GetPaddedBytes())}
	if digests := len(page.GetDigests()); digests != 0 {
		columns = append(columns, digests)
	}
	for _, length := range columns {
		if length != count {
			return t.refuse("the columns of its tensor table differ in length")
		}
	}
	dims, first := page.GetDims(), len(t.tensors)
	for i := range page.GetNames() {
		rank := page.RanksOfShape[i]
		if rank > maxDims || int(rank) > len(dims) {
			return t.refuse("the shape of tensor %q is cut off", page.Names[i])
		}
		tensor := Tensor{Name: page.Names[i], Dtype: page.Dtypes[i], Shape: dims[:rank:rank], Offset: page.Offsets[i],
			bytes: page.Bytes[i], padded: page.PaddedBytes[i]}
		if dims = dims[rank:]; len(page.Digests) > 0 {
			tensor.Digest, tensor.HasDigest = page.Digests[i], true
		}
		if err := t.check(&tensor); err != nil {
			return err
		}
		t.tensors = append(t.tensors, tensor)
	}
	if len(dims) != 0 {
		return t.refuse("its tensor table has more sizes than tensors")
	}
	t.unexpected = append(t.unexpected, page.GetUnexpectedNames()...)
	if err := t.addAliases(page, first, count); err != nil {
		return err
	}
	return t.addFlats(page)
}

func (t *table) check(tensor *Tensor) error {
	width := Bits(tensor.Dtype) / 8
	if Bits(tensor.Dtype) == 0 {
		return t.refuse("tensor %q has the dtype %d, which is unknown here", tensor.Name, tensor.Dtype)
	}
	if bytes, ok := denseBytes(tensor.Dtype, tensor.Shape); !ok || bytes != tensor.bytes {
		return t.refuse("tensor %q of shape %v in %s cannot have %d bytes", tensor.Name, tensor.Shape, DtypeName(tensor.Dtype), tensor.bytes)
	}
	// Members of flat parameters follow each other element by element, so no more can be asked.
	if width > 1 && tensor.Offset%width != 0 || tensor.padded < tensor.bytes || !t.inSlab(tensor.Offset, tensor.padded) {
		return t.refuse("tensor %q lies at %d + %d of a slab of %d bytes", tensor.Name, tensor.Offset, tensor.padded, t.slab)
	}
	return nil
}

// addAliases takes further names, which refer to tensors of this page.
func (t *table) addAliases(page *v1.TensorTable, first, count int) error {
	if len(page.GetAliasNames()) != len(page.GetAliasTensors()) {
		return t.refuse("the columns of its further names differ in length")
	}
	for i, name := range page.GetAliasNames() {
		target := page.AliasTensors[i]
		if int64(target) >= int64(count) {
			return t.refuse("the further name %q refers to no tensor", name)
		}
		t.aliases[name] = first + int(target)
	}
	return nil
}

func (t *table) addFlats(page *v1.TensorTable) error {
	count := len(page.GetFlatNames())
	if len(page.GetFlatDtypes()) != count || len(page.GetFlatOffsets()) != count || len(page.GetFlatElements()) != count {
		return t.refuse("the columns of its flat parameters differ in length")
	}
	for i, name := range page.GetFlatNames() {
		flat := Flat{name, page.FlatDtypes[i], page.FlatOffsets[i], page.FlatElements[i]}
		bytes, ok := denseBytes(flat.Dtype, []uint64{flat.Elements})
		if Bits(flat.Dtype) == 0 || !ok || flat.Offset%flatAlignment != 0 || !t.inSlab(flat.Offset, bytes) {
			return t.refuse("flat parameter %q lies at %d of a slab of %d bytes", name, flat.Offset, t.slab)
		}
		t.flats = append(t.flats, flat)
	}
	return nil
}

// finish checks the table as a whole, after its last page.
func (t *table) finish(announced uint64) error {
	if uint64(len(t.tensors)) != announced {
		return t.refuse("it announced %d tensors and listed %d", announced, len(t.tensors))
	}
	for i := range t.tensors {
		tensor := &t.tensors[i]
		if _, twice := t.index[tensor.Name]; twice {
			return t.refuse("tensor %q is listed twice", tensor.Name)
		}
		if t.index[tensor.Name] = i; tensor.HasDigest != t.tensors[0].HasDigest {
			return t.refuse("only some pages have digests")
		}
	}
	for name, target := range t.aliases {
		if _, twice := t.index[name]; twice {
			return t.refuse("the further name %q is a tensor itself", name)
		}
		t.index[name] = target
	}
	return nil
}

// place gives each tensor its memory.
func (t *table) place(slab []byte) {
	for i := range t.tensors {
		tensor := &t.tensors[i]
		// Slices end where the tensor does, so that append cannot reach the next one.
		tensor.Padded = slab[tensor.Offset : tensor.Offset+tensor.padded : tensor.Offset+tensor.padded]
		tensor.Data = tensor.Padded[:tensor.bytes:tensor.bytes]
	}
}
