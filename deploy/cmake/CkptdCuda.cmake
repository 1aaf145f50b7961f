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
set(CKPTD_CUDA_VERSION 0)
if(CKPTD_CUDA AND CKPTD_CUDA_INCLUDE_DIR)
  file(STRINGS ${CKPTD_CUDA_INCLUDE_DIR}/cuda.h CKPTD_CUDA_VERSION REGEX "^#define CUDA_VERSION [0-9]+")
  string(REGEX MATCH "[0-9]+" CKPTD_CUDA_VERSION "${CKPTD_CUDA_VERSION}")
endif()
if(CKPTD_CUDA_VERSION GREATER_EQUAL 12000)
  add_library(ckptd_cuda_headers INTERFACE)
  target_include_directories(ckptd_cuda_headers SYSTEM INTERFACE ${CKPTD_CUDA_INCLUDE_DIR})
elseif(CKPTD_CUDA STREQUAL "AUTO")
  message(STATUS "CUDA: no cuda.h of version 12 or newer found, so nothing that needs it is built (set CUDA_HOME, or CKPTD_CUDA=OFF)")
elseif(CKPTD_CUDA)
  message(FATAL_ERROR "CUDA: CKPTD_CUDA is ${CKPTD_CUDA}, but there is no cuda.h of version 12 or newer; set CUDA_HOME to a toolkit")
endif()

# nvcc, for the kernels. Without it everything else is built, and the daemon casts and
# repacks on the processor.
set(CKPTD_CUDA_ARCHITECTURES "75;80;86;89;90;100;103;110;120" CACHE STRING
  "GPU architectures to compile kernels for, of those that nvcc knows; later ones take the newest's PTX")
if(TARGET ckptd_cuda_headers)
  find_program(CKPTD_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin ${CKPTD_CUDA_INCLUDE_DIR}/../bin
    /usr/local/cuda/bin NO_DEFAULT_PATH)
  mark_as_advanced(CKPTD_NVCC)
  if(CKPTD_NVCC)
    execute_process(COMMAND ${CKPTD_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET
      RESULT_VARIABLE unusable)
    if(unusable)
      message(STATUS "CUDA: ${CKPTD_NVCC} does not run (${unusable}), so no kernels are built")
      set(CKPTD_NVCC "")
    endif()
  else()
    set(CKPTD_NVCC "")
    message(STATUS "CUDA: no nvcc beside cuda.h, so no kernels are built (set CUDA_HOME to a whole toolkit)")
  endif()
  if(CKPTD_NVCC)
    enable_language(ASM)
    execute_process(COMMAND ${CKPTD_NVCC} --help OUTPUT_VARIABLE help)
    execute_process(COMMAND ${CKPTD_NVCC} --version OUTPUT_VARIABLE version)
    string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" CKPTD_NVCC_RELEASE "${version}")
    set(CKPTD_NVCC_FLAGS "")
    foreach(arch IN LISTS CKPTD_CUDA_ARCHITECTURES)
      if(known MATCHES "sm_${arch}\n")
        list(APPEND CKPTD_NVCC_FLAGS -gencode=arch=compute_${arch},code=sm_${arch})
        set(newest ${arch})
      endif()
    endforeach()
    if(NOT newest)
      message(FATAL_ERROR "CUDA: ${CKPTD_NVCC} knows none of the architectures ${CKPTD_CUDA_ARCHITECTURES}; "
        "set CKPTD_CUDA_ARCHITECTURES to some of these: ${known}")
    endif()
    list(APPEND CKPTD_NVCC_FLAGS -gencode=arch=compute_${newest},code=compute_${newest})
    # Drivers before CUDA 12.4 cannot decompress "size", and else run what toolkits of 12 made; what
    # those of 13 made takes a newer driver in any case.
    if(CKPTD_NVCC_RELEASE VERSION_GREATER_EQUAL 13)
      list(APPEND CKPTD_NVCC_FLAGS --compress-mode=size)
    elseif(help MATCHES "--compress-mode")
      list(APPEND CKPTD_NVCC_FLAGS --compress-mode=speed)
    endif()
  endif()
endif()
