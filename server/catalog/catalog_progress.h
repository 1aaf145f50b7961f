// Shows the clients of this daemon how far loads have come.
#ifndef CKPTD_SERVER_CATALOG_CATALOG_PROGRESS_H_
#define CKPTD_SERVER_CATALOG_CATALOG_PROGRESS_H_

#include <string>

#include "server/catalog/catalog.h"
#include "server/protocol/load_observer.h"

namespace ckptd {

// `catalog` outlives it.
class CatalogProgress final : public LoadObserver {
 public:
  explicit CatalogProgress(Catalog& catalog) : catalog_(catalog) {}

  void OnProgress(const std::string& name, const Progress& progress) override {
    catalog_.UpdateProgress(name, progress);
  }
  // The end is told to each rank by Commit and Abort, to this one too.
  void OnEnded(const std::string&, const absl::Status&, const Progress&) override {}

 private:
  Catalog& catalog_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_CATALOG_PROGRESS_H_
