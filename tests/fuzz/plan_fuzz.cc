// Feeds arbitrary sources and layouts, as a leader or a client states them, to the
// planner, and the plans to what schedules a transfer.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "common/layout/unexpected.h"
#include "inputs.pb.h"
#include "server/rpc/convert.h"
#include "server/transfer/schedule.h"
#include "tests/fuzz/message_input.h"
#include "tests/fuzz/plan_properties.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

// Says that its bytes go elsewhere: the schedule then asks for no slab.
class NoSink final : public TransferSink {
 public:
  absl::Status Send(const Frame&) override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }
};

absl::StatusOr<PrepareCall> CallOf(v1::PrepareRequest request) {
  CKPTD_ASSIGN_OR_RETURN(const LoadRequest asked, FromProto(request.spec()));
  request.set_load_key(LoadKey(asked));
  return FromProto(request);
}

absl::StatusOr<RankLayout> LayoutFor(const LoadRequest& request, const CheckpointIndex& index,
                                     uint32_t rank) {
  if (const auto* stated = std::get_if<std::shared_ptr<const RankLayout>>(&request.layout)) {
    return **stated;
  }
  CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules,
                         LayoutRules::Parse(std::get<std::string>(request.layout)));
  return rules.ForRank(index, rank);
}

void CheckReads(const CheckpointIndex& index, const std::vector<RankPlan>& plans) {
  const std::vector<uint64_t> bytes = ReadBytesPerFile(index, plans);
  Require(bytes.size() == index.files.size(), "all files are counted");
  for (size_t i = 0; i < bytes.size(); ++i) {
    Require(bytes[i] <= index.files[i].bytes, "no file is read twice");
  }
}

// Copies that reach over much of a file make many items, up to a second of work:
// all of those that are tried on their own, and of many in a row a few.
bool WorthASchedule(const RankPlan& plan) {
  constexpr uint64_t kFewItems = 256;
  static uint64_t inputs = 0;
  if (++inputs <= 16 || inputs % 4096 == 0) return true;
  uint64_t items = 0;
  for (const CopyOp& op : plan.ops) {
    items += std::min<uint64_t>((op.file_end() - op.file_offset) / kItemBytes + 1, kFewItems);
    if (items > kFewItems) return false;
  }
  return true;
}

void CheckSchedule(const CheckpointIndex& index, const RankPlan& plan) {
  if (!WorthASchedule(plan)) return;
  NoSink sink;
  const std::array<TransferTarget, 1> target = {{{&plan, {}, &sink}}};
  const auto schedule = BuildSchedule(index, target);
  // Tensors of a lying index may overlap so that casts cannot agree.
  if (!schedule.ok()) return;
  for (size_t i = 0; i < schedule->items.size(); ++i) {
    const WorkItem& item = schedule->items[i];
    Require(item.begin < item.end && item.end <= index.files[item.file].bytes, "items are read");
    Require(i == 0 || schedule->items[i - 1].file < item.file ||
                schedule->items[i - 1].end <= item.begin,
            "items ascend");
  }
}

void FuzzPlan(const PlanInput& input) {
  const auto call = CallOf(input.prepare());
  if (!call.ok()) return RequireGoodError(call.status());
  const CheckpointIndex& index = *call->index;
  const auto layout = LayoutFor(call->request, index, input.rank());
  if (!layout.ok()) return RequireGoodError(layout.status());
  const RankLayout* const one = &*layout;
  if (const absl::Status status = CheckNothingUnexpected(index, {&one, 1}); !status.ok()) {
    RequireGoodError(status);
  }
  auto plan = PlanRank(index, *layout, call->request.policy);
  if (!plan.ok()) {
    // COVERAGE says that the index does not hold together, and is as good an answer.
    if (ReasonOf(plan.status()) != "COVERAGE") RequireGoodError(plan.status());
    return;
  }
  CheckPlan(index, *plan);
  const auto again = PlanRank(index, *layout, call->request.policy);
  Require(again.ok() && again->digest == plan->digest, "planning twice gives one plan");
  CheckSchedule(index, *plan);
  CheckReads(index, {*std::move(plan)});
}

}  // namespace
}  // namespace ckptd::fuzz

CKPTD_FUZZ_MESSAGE(ckptd::fuzz::PlanInput, ckptd::fuzz::FuzzPlan)
