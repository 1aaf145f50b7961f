# nccl.h, all that ckptd needs of NCCL at build time: libnccl is opened at run time.
# Makes the target ckptd_nccl_headers where it is found, together with CUDA's headers.
set(CKPTD_NCCL AUTO CACHE STRING "Build the parts that need nccl.h: AUTO (where it is found), ON or OFF")
set_property(CACHE CKPTD_NCCL PROPERTY STRINGS AUTO ON OFF)

set(CKPTD_NCCL_VERSION 0)
if(CKPTD_NCCL AND TARGET ckptd_cuda_headers)
  # NVIDIA's wheel, which deploy/setup installs; then the toolkit and the system.
  file(GLOB wheel ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
  find_path(CKPTD_NCCL_INCLUDE_DIR nccl.h
    HINTS $ENV{NCCL_HOME}/include ${wheel} ${CKPTD_CUDA_INCLUDE_DIR})
  mark_as_advanced(CKPTD_NCCL_INCLUDE_DIR)
  if(CKPTD_NCCL_INCLUDE_DIR)
    file(STRINGS ${CKPTD_NCCL_INCLUDE_DIR}/nccl.h line REGEX "^#define NCCL_VERSION_CODE [0-9]+")
    string(REGEX MATCH "[0-9]+" CKPTD_NCCL_VERSION "${line}")
  endif()
endif()
if(CKPTD_NCCL_VERSION GREATER_EQUAL 21900)
  add_library(ckptd_nccl_headers INTERFACE)
  target_link_libraries(ckptd_nccl_headers INTERFACE ckptd_cuda_headers)
  target_include_directories(ckptd_nccl_headers SYSTEM INTERFACE ${CKPTD_NCCL_INCLUDE_DIR})
elseif(CKPTD_NCCL STREQUAL "AUTO")
  message(STATUS "NCCL: no nccl.h of version 2.19 or newer found beside CUDA's headers, so nothing that needs it is "
    "built (run deploy/setup, set NCCL_HOME, or CKPTD_NCCL=OFF)")
elseif(CKPTD_NCCL)
  message(FATAL_ERROR "NCCL: CKPTD_NCCL is ${CKPTD_NCCL}, but there is no nccl.h of version 2.19 or newer beside "
    "CUDA's headers; run deploy/setup, or set NCCL_HOME")
endif()
