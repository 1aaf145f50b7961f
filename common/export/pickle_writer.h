// Writes the small pickles of torch's formats (protocol 2, which all of its readers take).
#ifndef CKPTD_COMMON_EXPORT_PICKLE_WRITER_H_
#define CKPTD_COMMON_EXPORT_PICKLE_WRITER_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "common/source/dtype.h"
#include "common/source/index.h"

namespace ckptd {

// A stack machine's program, value by value: each call pushes one value, or makes one of those that
// were pushed. Texts and globals that come again are taken from the memo. Not thread-safe.
class PickleWriter {
 public:
  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? '\x88' : '\x89'; }
  void Int(uint64_t value);
  void Text(std::string_view text);
  void Global(std::string_view module, std::string_view name);
  void EmptyTuple() { out_ += ')'; }
  void EmptyDict() { out_ += '}'; }
  void EmptyList() { out_ += ']'; }

  // Values between Mark() and one of these belong together.
  void Mark() { out_ += '('; }
  void Tuple() { out_ += 't'; }     // is them
  void SetItems() { out_ += 'u'; }  // keys and values go into the dict below the mark
  void Appends() { out_ += 'e'; }   // go into the list below the mark

  // The callee below is called with the tuple above; the result takes the place of both.
  void Reduce() { out_ += 'R'; }
  // The class below makes an object of the empty tuple above, without __init__.
  void NewObject() { out_ += '\x81'; }
  // The object below gets the state above.
  void Build() { out_ += 'b'; }
  // The tuple above names something outside of the pickle.
  void PersistentId() { out_ += 'Q'; }

  // torch.Size of a shape, or the plain tuple.
  void Size(const Shape& shape);
  void ShapeTuple(const Shape& shape);

  // The text of the whole pickle. Once.
  std::string Finish() { return std::move(out_) + '.'; }

 private:
  // Writes that it is taken from the memo, if it is there; else what is put there is to be written.
  bool Recall(const std::string& key);
  void Remember(const std::string& key);
  void Fixed(uint64_t value, int bytes);

  std::string out_ = "\x80\x02";
  std::map<std::string, uint32_t, std::less<>> memo_;
};

// "float32": torch's name of a dtype; empty: it has none.
std::string_view TorchName(Dtype dtype);

// A tensor in C order that is all of the storage of that key. Its dtype has a TorchName; of
// elements of half a byte the last dimension is even.
void AddTensor(Dtype dtype, const Shape& shape, std::string_view storage, PickleWriter& out);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_PICKLE_WRITER_H_
