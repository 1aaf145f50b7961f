#include "tests/fuzz/message_input.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/utf8.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

// libFuzzer's own mutation of bytes, which knows what the code has compared with.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace ckptd::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMaxStringBytes = 512;
constexpr size_t kUsualBytes = 1536;
constexpr int kMaxDepth = 8;

class Silent final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

class Mutator {
  using R = Reflection;

 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  // Changes one place of the message.
  void Mutate(Message& message) {
    sites_.clear();
    Collect(message, 0);
    if (sites_.empty()) return;
    const auto [where, field] = sites_[Below(sites_.size())];
    if (field->is_repeated()) {
      MutateRepeated(*where, field);
    } else {
      MutateOne(*where, field, -1);
    }
  }
  size_t Below(size_t limit) { return random_() % limit; }

 private:
  // Every field of every message that is there.
  void Collect(Message& message, int depth) {
    const auto* const descriptor = message.GetDescriptor();
    const Reflection& access = *message.GetReflection();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor* const field = descriptor->field(i);
      sites_.emplace_back(&message, field);
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || depth == kMaxDepth) continue;
      const int count = field->is_repeated()              ? access.FieldSize(message, field)
                        : access.HasField(message, field) ? 1
                                                          : 0;
      for (int at = 0; at < count; ++at) {
        Collect(field->is_repeated() ? *access.MutableRepeatedMessage(&message, field, at)
                                     : *access.MutableMessage(&message, field),
                depth + 1);
      }
    }
  }

  void MutateRepeated(Message& message, const FieldDescriptor* field) {
    const Reflection& access = *message.GetReflection();
    const int count = access.FieldSize(message, field);
    const size_t action = Below(8);
    if (count == 0 || action == 0) {
      Append(message, field);
    } else if (action == 1) {
      access.RemoveLast(&message, field);
    } else if (action == 2) {
      access.SwapElements(&message, field, static_cast<int>(Below(static_cast<size_t>(count))),
                          count - 1);
    } else if (action == 3) {
      AppendRow(message, count);
    } else {
      MutateOne(message, field, static_cast<int>(Below(static_cast<size_t>(count))));
    }
  }

  // Fields that have `count` values are columns of a table: a row for all of them.
  void AppendRow(Message& message, int count) {
    const auto* const descriptor = message.GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor* const field = descriptor->field(i);
      if (field->is_repeated() && message.GetReflection()->FieldSize(message, field) == count) {
        Append(message, field);
      }
    }
  }

  // A new value, or one more of the last.
  void Append(Message& message, const FieldDescriptor* field) {
    const Reflection& access = *message.GetReflection();
    const int count = access.FieldSize(message, field);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        Message* const added = access.AddMessage(&message, field);
        if (count > 0 && Below(2) == 0) {
          added->CopyFrom(access.GetRepeatedMessage(message, field, count - 1));
        }
        break;
      }
      case FieldDescriptor::CPPTYPE_INT32:
        access.AddInt32(&message, field, 0);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        access.AddInt64(&message, field, 0);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        access.AddUInt32(&message, field, 0);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        access.AddUInt64(&message, field, 0);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        access.AddDouble(&message, field, 0);
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        access.AddFloat(&message, field, 0);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        access.AddBool(&message, field, false);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        access.AddEnumValue(&message, field, 0);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        access.AddString(&message, field, "");
        break;
    }
    if (Below(3) != 0) MutateOne(message, field, count);
  }

  // Value number `at` of a repeated field, or of one that is not (-1).
  void MutateOne(Message& message, const FieldDescriptor* field, int at) {
    const Reflection& access = *message.GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (at >= 0) break;
        if (!access.HasField(message, field)) {
          access.MutableMessage(&message, field);
        } else if (Below(4) == 0) {
          access.ClearField(&message, field);
        }
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        Change(message, field, at, &R::GetBool, &R::SetBool, &R::GetRepeatedBool,
               &R::SetRepeatedBool, [](bool old) { return !old; });
        break;
      case FieldDescriptor::CPPTYPE_ENUM: {
        // One past the last is none.
        const auto count = static_cast<size_t>(field->enum_type()->value_count()) + 1;
        Change(message, field, at, &R::GetEnumValue, &R::SetEnumValue, &R::GetRepeatedEnumValue,
               &R::SetRepeatedEnumValue, [&](int) { return static_cast<int>(Below(count)); });
        break;
      }
      case FieldDescriptor::CPPTYPE_STRING:
        Change(message, field, at, &R::GetString, &R::SetString, &R::GetRepeatedString,
               &R::SetRepeatedString, [&](std::string old) { return Text(std::move(old), field); });
        break;
      default:
        MutateNumber(message, field, at);
    }
  }

  void MutateNumber(Message& message, const FieldDescriptor* field, int at) {
    const auto number = [this](auto old) {
      return static_cast<decltype(old)>(Number(static_cast<uint64_t>(old)));
    };
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Change(message, field, at, &R::GetInt32, &R::SetInt32, &R::GetRepeatedInt32,
                      &R::SetRepeatedInt32, number);
      case FieldDescriptor::CPPTYPE_INT64:
        return Change(message, field, at, &R::GetInt64, &R::SetInt64, &R::GetRepeatedInt64,
                      &R::SetRepeatedInt64, number);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Change(message, field, at, &R::GetUInt32, &R::SetUInt32, &R::GetRepeatedUInt32,
                      &R::SetRepeatedUInt32, number);
      case FieldDescriptor::CPPTYPE_UINT64:
        return Change(message, field, at, &R::GetUInt64, &R::SetUInt64, &R::GetRepeatedUInt64,
                      &R::SetRepeatedUInt64, number);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Change(message, field, at, &R::GetDouble, &R::SetDouble, &R::GetRepeatedDouble,
                      &R::SetRepeatedDouble, [this](double old) {
                        return Below(2) == 0 ? -old : static_cast<double>(Number(0));
                      });
      default:
        return;  // the contract has no floats
    }
  }

  template <typename Get, typename Set, typename GetOne, typename SetOne, typename Make>
  static void Change(Message& message, const FieldDescriptor* field, int at, Get get, Set set,
                     GetOne get_one, SetOne set_one, const Make& make) {
    const Reflection& access = *message.GetReflection();
    if (at >= 0) {
      (access.*set_one)(&message, field, at, make((access.*get_one)(message, field, at)));
    } else {
      (access.*set)(&message, field, make((access.*get)(message, field)));
    }
  }

  uint64_t Number(uint64_t old) {
    switch (Below(6)) {
      case 0:
        return Below(18);
      case 1:
        return old + 1;
      case 2:
        return old - 1;
      case 3:
        return (uint64_t{1} << Below(64)) - Below(3);
      case 4:
        return old * 2;
      default: {
        uint64_t bytes = old;
        LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(&bytes), sizeof(bytes), sizeof(bytes));
        return bytes;
      }
    }
  }

  std::string Text(std::string text, const FieldDescriptor* field) {
    const size_t old = std::min(text.size(), kMaxStringBytes);
    text.resize(kMaxStringBytes);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), old, kMaxStringBytes));
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      text.resize(ValidUtf8Prefix(text));  // protobuf refuses anything else
    }
    return text;
  }

  std::minstd_rand random_;
  std::vector<std::pair<Message*, const FieldDescriptor*>> sites_;
};

}  // namespace

bool ReadText(const uint8_t* data, size_t size, Message& message) {
  google::protobuf::TextFormat::Parser parser;
  Silent silent;
  parser.RecordErrorsTo(&silent);
  parser.SetRecursionLimit(50);
  return parser.ParseFromString(std::string(reinterpret_cast<const char*>(data), size), &message);
}

size_t MutateText(uint8_t* data, size_t size, size_t max_size, unsigned seed, Message& message) {
  if (!ReadText(data, size, message)) message.Clear();
  Mutator mutator(seed);
  for (size_t changes = 1 + mutator.Below(3); changes > 0; --changes) mutator.Mutate(message);
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  // Long ones are slow and find little that short ones do not: few are made.
  const size_t most = mutator.Below(32) == 0 ? max_size : std::max(kUsualBytes, size);
  if (text.size() > std::min(most, max_size)) return size;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace ckptd::fuzz
