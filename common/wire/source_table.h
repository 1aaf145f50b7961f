// The index of a source as a message: between daemons, and from daemons to clients.
#ifndef CKPTD_COMMON_WIRE_SOURCE_TABLE_H_
#define CKPTD_COMMON_WIRE_SOURCE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "ckptd/v1/source.pb.h"
#include "common/source/index.h"

namespace ckptd {

// Fills a table, tensor by tensor. Columns that say what is so by default stay empty. Not
// thread-safe; index and table outlive it.
class SourceTableWriter {
 public:
  // `out` is empty.
  SourceTableWriter(const CheckpointIndex& index, v1::SourceTable& out) : index_(index), out_(out) {}

  void Add(const TensorEntry& tensor);
  void AddAliases();
  // Bytes that the message grows by, at most, with this tensor and without its `bytes`.
  static size_t CostOf(const TensorEntry& tensor);

 private:
  void AddPiece(const TensorEntry& tensor, const Piece& piece);
  void AddKind(EntryKind kind);
  void AddGroup(uint32_t group);

  const CheckpointIndex& index_;
  v1::SourceTable& out_;
  std::map<uint32_t, uint32_t> groups_;  // of the index -> of the table
};

// Appends what a table of another process says to `index`, which has its files. Every value is
// checked: all pieces hold together (WhyImpossible) and lie in these files. What is wrong, as the
// end of a sentence; empty: nothing. `index` is worth nothing then.
std::string ReadSourceTable(const v1::SourceTable& table, CheckpointIndex& index);

}  // namespace ckptd

#endif  // CKPTD_COMMON_WIRE_SOURCE_TABLE_H_
