// Layouts as messages: what every sender says, be it a client or a daemon of the group.
// Only daemons read them (server/rpc), which check what they are told. Pure; thread-safe.
#ifndef CKPTD_COMMON_WIRE_LAYOUT_H_
#define CKPTD_COMMON_WIRE_LAYOUT_H_

#include "ckptd/v1/types.pb.h"
#include "common/layout/layout.h"
#include "common/source/dtype.h"

namespace ckptd {

// Whether all targets state the shape they expect. The shape columns speak of all targets or of
// none: where some state theirs, ToProto leaves those out.
bool StatesAllShapes(const RankLayout& layout);

// A member of a flat parameter that `layout` does not have is sent as no member.
v1::RankLayout ToProto(const RankLayout& layout);
v1::DtypePolicy ToProto(const DtypePolicy& policy);

}  // namespace ckptd

#endif  // CKPTD_COMMON_WIRE_LAYOUT_H_
