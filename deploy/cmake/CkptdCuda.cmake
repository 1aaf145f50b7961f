# NVIDIA's headers. The driver itself is opened at run time; nothing links it, and a
# binary built with the headers runs where there is no GPU.
set(CKPTD_CUDA AUTO CACHE STRING "Device memory: AUTO (with the headers, if found), ON or OFF")
set_property(CACHE CKPTD_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CKPTD_WITH_CUDA FALSE)
if(NOT CKPTD_CUDA STREQUAL "OFF")
  file(GLOB CKPTD_CUDA_WHEELS ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13/include)
  find_path(CKPTD_CUDA_INCLUDE cuda.h
    HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include ${CKPTD_CUDA_WHEELS} NO_CACHE)
  if(CKPTD_CUDA_INCLUDE)
    set(CKPTD_WITH_CUDA TRUE)
    add_library(ckptd_cuda_headers INTERFACE)
    target_include_directories(ckptd_cuda_headers SYSTEM INTERFACE ${CKPTD_CUDA_INCLUDE})
  elseif(CKPTD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CKPTD_CUDA=ON, but there is no cuda.h; set CUDA_HOME to a toolkit of version 12 or newer")
  else()
    message(STATUS "no cuda.h: building without device memory (set CUDA_HOME to a CUDA toolkit)")
  endif()
endif()
