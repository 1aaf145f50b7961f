// The result of a call that a pickle describes: a value of a pure constructor, or an inert record.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_CALLER_H_
#define CKPTD_COMMON_SOURCE_PICKLE_CALLER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/pickle/builder.h"
#include "common/source/pickle/value.h"

namespace ckptd::pickle {

class Caller {
 public:
  explicit Caller(Builder& builder) : builder_(builder) {}

  // The value of callee(*arguments, **keywords). The callee is a symbol, a record or a kPersistent;
  // the arguments are those of a tuple, or last as long as the document; keywords are a dict or
  // nullptr. Errors: PermissionDenied SOURCE_UNSAFE; those of Builder::CountRepeated.
  absl::StatusOr<const Value*> Call(const Value& callee, Items arguments, const Value* keywords);

 private:
  // nullptr, here and below: these arguments make no such value, so it stays a record.
  absl::StatusOr<const Value*> Construct(const Value& symbol, Items arguments);
  absl::StatusOr<const Value*> OrderedDict(Items arguments);
  absl::StatusOr<const Value*> Set(Items arguments);
  absl::StatusOr<const Value*> Size(Items arguments);
  absl::StatusOr<const Value*> Bytes(Items arguments);
  absl::StatusOr<const Value*> Encode(Items arguments);
  absl::StatusOr<const Value*> Encoded(const Value& text, std::string_view encoding);
  const Value* Complex(Items arguments);
  absl::StatusOr<const Value*> Getattr(Items arguments);
  absl::StatusOr<const Value*> Reconstructor(Items arguments);
  absl::StatusOr<const Value*> NewObj(Items arguments);
  absl::StatusOr<const Value*> NewObjEx(Items arguments);

  Builder& builder_;
};

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_CALLER_H_
