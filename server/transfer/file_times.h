// Notes how long the files of a transfer take to be read, and names one that is much slower than
// the others.
#ifndef CKPTD_SERVER_TRANSFER_FILE_TIMES_H_
#define CKPTD_SERVER_TRANSFER_FILE_TIMES_H_

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "common/base/mutex.h"

namespace ckptd {

// How fast a file is read, as one thread sees it.
struct FileRate {
  std::string path = {};  // empty: no file stands out
  double bytes_per_second = 0;
};

// Thread-safe. Its cost is one lock per item of a transfer.
class FileTimes {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // An item that is read for this long stands out, whatever else is read.
  static constexpr std::chrono::seconds kStalled{2};
  // Files that were read for less than this are not compared.
  static constexpr std::chrono::milliseconds kEnough{50};

 private:
  struct Reading {
    uint32_t file = 0;
    Time since;
    bool active = false;
  };

 public:
  // The items that one thread reads, one after the other. `times` must outlive it. Not thread-safe.
  class Reader {
   public:
    explicit Reader(FileTimes& times);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // `path` is that of file number `file`.
    void Begin(uint32_t file, const std::string& path, Time now);
    void End(uint64_t bytes, Time now);

   private:
    FileTimes& times_;
    std::list<Reading>::iterator reading_;
  };

  // The file of an item that has stalled, the oldest one; else the file with the lowest rate, if the
  // others are read at least twice as fast.
  FileRate Slowest(Time now) const;

 private:
  struct Tally {
    std::string path;
    std::chrono::nanoseconds busy{0};
    uint64_t bytes = 0;
  };
  const Reading* OldestStalled(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::list<Reading> readings_ ABSL_GUARDED_BY(mutex_);  // one per Reader
  std::map<uint32_t, Tally> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_FILE_TIMES_H_
