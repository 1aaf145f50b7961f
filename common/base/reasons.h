// Machine-readable reasons of errors. They are part of the API and never renamed. proto/README.md
// lists them with their codes.
#ifndef CKPTD_COMMON_BASE_REASONS_H_
#define CKPTD_COMMON_BASE_REASONS_H_

namespace ckptd::reason {

// Source.
inline constexpr char kSourceNotFound[] = "SOURCE_NOT_FOUND";      // NotFound
inline constexpr char kSourceInvalid[] = "SOURCE_INVALID";         // DataLoss / InvalidArgument
inline constexpr char kSourceUnreadable[] = "SOURCE_UNREADABLE";   // PermissionDenied / Unavailable
inline constexpr char kSourceForbidden[] = "SOURCE_FORBIDDEN";     // PermissionDenied
inline constexpr char kSourceOutsideRoots[] = "SOURCE_OUTSIDE_ROOTS";  // PermissionDenied
inline constexpr char kSourceChanged[] = "SOURCE_CHANGED";         // Aborted: a file changed during the load
inline constexpr char kStorageStalled[] = "STORAGE_STALLED";       // DeadlineExceeded: a call to storage has not returned
inline constexpr char kSourceUnsafe[] = "SOURCE_UNSAFE";           // PermissionDenied: a pickle that would execute something
inline constexpr char kSourceUnsupported[] = "SOURCE_UNSUPPORTED"; // Unimplemented: a format we do not read

// Layout and plan.
inline constexpr char kLayoutInvalid[] = "LAYOUT_INVALID";         // InvalidArgument: malformed or unknown
inline constexpr char kLayoutMismatch[] = "LAYOUT_MISMATCH";       // InvalidArgument: does not fit the source
inline constexpr char kTensorNotFound[] = "TENSOR_NOT_FOUND";      // NotFound: requested, not in the source
inline constexpr char kUnexpectedTensors[] = "UNEXPECTED_TENSORS";  // InvalidArgument: in the source, requested by no rank
inline constexpr char kWrongWorldSize[] = "WRONG_WORLD_SIZE";      // InvalidArgument
inline constexpr char kWrongRank[] = "WRONG_RANK";                 // InvalidArgument
inline constexpr char kPlanMismatch[] = "PLAN_MISMATCH";           // Internal: digests differ between ranks
inline constexpr char kCoverage[] = "COVERAGE";                    // Internal: an element not written exactly once

// Loading and handing over.
inline constexpr char kIllegalState[] = "ILLEGAL_STATE";               // Internal: a load's states in an order that cannot be
inline constexpr char kCheckpointNotFound[] = "CHECKPOINT_NOT_FOUND";  // NotFound
inline constexpr char kNotActive[] = "NOT_ACTIVE";                     // FailedPrecondition
inline constexpr char kLoadFailed[] = "LOAD_FAILED";                   // FailedPrecondition
inline constexpr char kLoadCancelled[] = "LOAD_CANCELLED";             // Aborted: by an operator
inline constexpr char kTaken[] = "TAKEN";                              // FailedPrecondition
inline constexpr char kExclusiveNeedsCopy[] = "EXCLUSIVE_NEEDS_COPY";  // FailedPrecondition
inline constexpr char kLeased[] = "LEASED";                            // FailedPrecondition
inline constexpr char kHandleKind[] = "HANDLE_KIND";                   // FailedPrecondition
inline constexpr char kTokenInvalid[] = "TOKEN_INVALID";               // Unauthenticated
inline constexpr char kNoDigests[] = "NO_DIGESTS";                     // FailedPrecondition
inline constexpr char kRequestIdReused[] = "REQUEST_ID_REUSED";        // AlreadyExists
inline constexpr char kNoMemory[] = "NO_MEMORY";                       // ResourceExhausted
inline constexpr char kLoadConflict[] = "LOAD_CONFLICT";               // FailedPrecondition: ranks wait in different loads
inline constexpr char kTooManyLoads[] = "TOO_MANY_LOADS";              // ResourceExhausted
inline constexpr char kTooManyWaiting[] = "TOO_MANY_WAITING";          // ResourceExhausted
inline constexpr char kCallerNotAllowed[] = "CALLER_NOT_ALLOWED";      // PermissionDenied
inline constexpr char kDraining[] = "DRAINING";                        // Unavailable
inline constexpr char kDigestMismatch[] = "DIGEST_MISMATCH";           // DataLoss

// Devices.
inline constexpr char kNoDevice[] = "NO_DEVICE";          // FailedPrecondition: no driver, no such GPU
inline constexpr char kDeviceFailed[] = "DEVICE_FAILED";  // Unavailable: the driver reports an error
inline constexpr char kNoNccl[] = "NO_NCCL";              // FailedPrecondition: no library, or too old a one
inline constexpr char kNcclFailed[] = "NCCL_FAILED";  // Unavailable / Internal: an error of NCCL

// Group.
inline constexpr char kRankMissing[] = "RANK_MISSING";    // Unavailable / DeadlineExceeded: names the ranks
inline constexpr char kRankFailed[] = "RANK_FAILED";      // that rank's code and message
inline constexpr char kRankLost[] = "RANK_LOST";          // Unavailable: a daemon went away
inline constexpr char kTransferCorrupt[] = "TRANSFER_CORRUPT";  // DataLoss: a checksum differs
inline constexpr char kTransferInvalid[] = "TRANSFER_INVALID";  // InvalidArgument: does not fit the plan
inline constexpr char kEpochChanged[] = "EPOCH_CHANGED";  // Aborted
inline constexpr char kJoinRefused[] = "JOIN_REFUSED";    // FailedPrecondition
inline constexpr char kDeadline[] = "DEADLINE";           // DeadlineExceeded
inline constexpr char kDaemonUnreachable[] = "DAEMON_UNREACHABLE";  // Unavailable (clients)
inline constexpr char kTargetInvalid[] = "TARGET_INVALID";  // where tools write: AlreadyExists / Unimplemented ...
inline constexpr char kInvalidRequest[] = "INVALID_REQUEST";        // InvalidArgument
inline constexpr char kInvalidReply[] = "INVALID_REPLY";            // DataLoss (clients)
inline constexpr char kConfigInvalid[] = "CONFIG_INVALID";          // InvalidArgument

}  // namespace ckptd::reason

#endif  // CKPTD_COMMON_BASE_REASONS_H_
