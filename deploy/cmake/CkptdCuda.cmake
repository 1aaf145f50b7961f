# The headers of the CUDA toolkit, all that ckptd needs of it at build time:
# libcuda is opened at run time. Makes the target ckptd_cuda_headers if they are there.
set(CKPTD_CUDA AUTO CACHE STRING "Build the parts that need cuda.h: AUTO (where it is found), ON or OFF")
set_property(CACHE CKPTD_CUDA PROPERTY STRINGS AUTO ON OFF)

if(CKPTD_CUDA)
  # Not from nvcc's location: what is on the PATH is often a wrapper.
  find_path(CKPTD_CUDA_INCLUDE_DIR cudaTypedefs.h
    HINTS $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include
    PATHS /usr/local/cuda/include /opt/cuda/include)
  mark_as_advanced(CKPTD_CUDA_INCLUDE_DIR)
endif()
if(CKPTD_CUDA AND CKPTD_CUDA_INCLUDE_DIR)
  add_library(ckptd_cuda_headers INTERFACE)
  target_include_directories(ckptd_cuda_headers SYSTEM INTERFACE ${CKPTD_CUDA_INCLUDE_DIR})
elseif(CKPTD_CUDA STREQUAL "AUTO")
  message(STATUS "CUDA: no cuda.h found, so nothing that needs it is built (set CUDA_HOME, or CKPTD_CUDA=OFF)")
elseif(CKPTD_CUDA)
  message(FATAL_ERROR "CUDA: CKPTD_CUDA is ${CKPTD_CUDA}, but there is no cuda.h; set CUDA_HOME to the toolkit")
endif()
