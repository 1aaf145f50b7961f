// The key by which trainers know each other's words. Pure.
#ifndef CKPTD_SERVER_NODE_TRAINER_KEY_H_
#define CKPTD_SERVER_NODE_TRAINER_KEY_H_

#include <string>
#include <string_view>

namespace ckptd {

// HMAC-SHA256 of a fixed label under the group's secret: 32 bytes, the same on every rank. Who has
// it learns nothing of the secret, with which memory of other ranks could be had.
std::string DeriveTrainerKey(std::string_view group_secret);

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_TRAINER_KEY_H_
