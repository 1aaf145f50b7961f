// JSON as Python writes it. Pure: no I/O.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_PYTHON_JSON_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_PYTHON_JSON_H_

#include <string>
#include <string_view>

namespace ckptd {

// `text` with 0 in place of NaN, Infinity and -Infinity, which Python's json writes and reads
// and JSON does not have; positions stay. All else, also what is no JSON, stays as it is.
std::string StrictJson(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_PYTHON_JSON_H_
