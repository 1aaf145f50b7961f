// Values of labels: each is one of a few words.
#ifndef CKPTD_SERVER_METRICS_LABELS_H_
#define CKPTD_SERVER_METRICS_LABELS_H_

#include <algorithm>
#include <string>

#include "common/base/attach_mode.h"
#include "server/protocol/domain.h"

namespace ckptd {

inline std::string LabelOf(Stage stage) {
  std::string text(NameOf(stage));
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

inline std::string LabelOf(AttachMode mode) {
  switch (mode) {
    case AttachMode::kShared: return "shared";
    case AttachMode::kPrivate: return "private";
    case AttachMode::kExclusive: return "exclusive";
  }
  return "unknown";
}

}  // namespace ckptd

#endif  // CKPTD_SERVER_METRICS_LABELS_H_
