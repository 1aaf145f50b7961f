# Third-party libraries, linked statically where Debian ships archives, so that
# build/bin/ckptd runs on any machine with the C library alone.

set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
set(OPENSSL_USE_STATIC_LIBS ON)
find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(ZLIB REQUIRED)

# Debian's CMake packages name the shared objects; the archives lie beside them.
function(ckptd_link_statically)
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      continue()
    endif()
    get_target_property(location ${target} IMPORTED_LOCATION_NONE)
    if(location MATCHES "\\.so")
      string(REGEX REPLACE "\\.so[0-9.]*$" ".a" archive ${location})
      if(EXISTS ${archive})
        set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE ${archive})
      endif()
    endif()
  endforeach()
endfunction()

find_library(CKPTD_URING_LIBRARY NAMES uring REQUIRED)
add_library(CKPTD::uring INTERFACE IMPORTED)
target_link_libraries(CKPTD::uring INTERFACE ${CKPTD_URING_LIBRARY})

# Every imported absl target, from the export file itself.
get_directory_property(imported IMPORTED_TARGETS)
set(absl_targets ${imported})
list(FILTER absl_targets INCLUDE REGEX "^absl::")
ckptd_link_statically(${absl_targets})

if(CKPTD_BUILD_SERVER)
  find_package(Protobuf REQUIRED)  # module mode: Debian ships no config file
  find_package(gRPC CONFIG REQUIRED)
  get_directory_property(imported IMPORTED_TARGETS)
  set(grpc_targets ${imported})
  list(FILTER grpc_targets INCLUDE REGEX "^gRPC::")
  ckptd_link_statically(${grpc_targets})
  find_library(CKPTD_RE2_ARCHIVE NAMES libre2.a)
  if(CKPTD_RE2_ARCHIVE AND TARGET re2::re2)
    # An interface target over pkg-config's answer here, which names the shared object.
    set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES ${CKPTD_RE2_ARCHIVE})
  endif()
  find_package(CLI11 CONFIG REQUIRED)
endif()

if(CKPTD_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
  include(GoogleTest)
endif()
