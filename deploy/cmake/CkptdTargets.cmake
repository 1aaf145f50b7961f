# How every target of ours is compiled, and one helper per kind of target.

find_program(CKPTD_CCACHE ccache)
if(CKPTD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the sources count as relative: every clone finds what another one compiled.
  # It keeps what was compiled with precompiled headers only where these may be taken as they are.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CKPTD_CCACHE})
endif()

add_library(ckptd_options INTERFACE)
target_include_directories(ckptd_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_definitions(ckptd_options INTERFACE SPDLOG_FMT_EXTERNAL CKPTD_VERSION="${PROJECT_VERSION}")
target_compile_options(ckptd_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wconversion -fno-plt -fstack-protector-strong
  # g++ 12 sees overlaps in std::string assignments that are none (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(ckptd_options INTERFACE -Wthread-safety)
endif()
if(CKPTD_WERROR)
  target_compile_options(ckptd_options INTERFACE -Werror)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT CKPTD_SANITIZE)
  target_compile_definitions(ckptd_options INTERFACE _FORTIFY_SOURCE=2 _GLIBCXX_ASSERTIONS)
endif()
if(CKPTD_SANITIZE)
  add_compile_options(-fsanitize=${CKPTD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${CKPTD_SANITIZE})
endif()
set(CKPTD_TEST_SECONDS 120)
if(CKPTD_SANITIZE)
  set(CKPTD_TEST_SECONDS 600)  # instrumented code is five to fifteen times as slow
endif()

# What most files include is compiled once for all libraries, and with GoogleTest once for all tests.
# Each file includes what it uses all the same: the preset dev builds without.
set(CKPTD_COMMON_HEADERS <algorithm> <atomic> <chrono> <functional> <map> <memory> <optional> <set> <span>
  <string> <string_view> <thread> <utility> <vector> <absl/status/statusor.h> <fmt/format.h>)
# With headers compiled ahead, g++ 12 warns of accesses in the standard library that cannot be.
set(CKPTD_PRECOMPILED_OPTIONS
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess;-Wno-array-bounds;-Wno-stringop-overread;-Wno-stringop-overflow>)
# For what is compiled more often than it runs long: tests, commands, the start of the daemon.
set(CKPTD_COLD_OPTIONS $<$<CONFIG:Release>:-O1>)

set(headers_source ${CMAKE_SOURCE_DIR}/deploy/cmake/precompiled.cc)
add_library(ckptd_headers OBJECT EXCLUDE_FROM_ALL ${headers_source})
target_precompile_headers(ckptd_headers PRIVATE ${CKPTD_COMMON_HEADERS})
target_link_libraries(ckptd_headers PRIVATE ckptd_options)
target_compile_options(ckptd_headers PRIVATE ${CKPTD_PRECOMPILED_OPTIONS})
if(CKPTD_BUILD_TESTS)
  add_executable(ckptd_test_headers EXCLUDE_FROM_ALL ${headers_source})
  target_precompile_headers(ckptd_test_headers PRIVATE ${CKPTD_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
  target_link_libraries(ckptd_test_headers PRIVATE ckptd_options GTest::gmock)
  target_compile_options(ckptd_test_headers PRIVATE ${CKPTD_COLD_OPTIONS} ${CKPTD_PRECOMPILED_OPTIONS})
endif()

# ckptd_precompile(name FROM target [HEADERS header...]): what that target compiled ahead, or with
# further headers a set of its own.
function(ckptd_precompile name)
  cmake_parse_arguments(ARG "" "FROM" "HEADERS" ${ARGN})
  if(ARG_HEADERS)
    target_precompile_headers(${name} PRIVATE ${CKPTD_COMMON_HEADERS} ${ARG_HEADERS})
  else()
    target_precompile_headers(${name} REUSE_FROM ${ARG_FROM})
  endif()
  target_compile_options(${name} PRIVATE ${CKPTD_PRECOMPILED_OPTIONS})
endfunction()

# ckptd_library(name [COLD] [EXCLUDE file...] [FOLDERS dir...] [DEPENDS lib...] [HEADERS header...]):
# every .cc of the folder it is called in, and of these below it. HEADERS: what many of them include
# besides, and takes long to compile. COLD: speed counts for nothing in it.
function(ckptd_library name)
  cmake_parse_arguments(ARG "COLD" "" "DEPENDS;EXCLUDE;FOLDERS;HEADERS" ${ARGN})
  list(TRANSFORM ARG_FOLDERS APPEND /*.cc)
  file(GLOB sources CONFIGURE_DEPENDS *.cc ${ARG_FOLDERS})
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${excluded})
  endforeach()
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC ckptd_options ${ARG_DEPENDS})
    if(ARG_COLD)
      target_compile_options(${name} PRIVATE ${CKPTD_COLD_OPTIONS})
    endif()
    ckptd_precompile(${name} FROM ckptd_headers HEADERS ${ARG_HEADERS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ckptd_options ${ARG_DEPENDS})
  endif()
endfunction()

# ckptd_travels(program): it runs on other machines, of the system's C library alone, and is small:
# the package has it. Relocations in their compact form (glibc 2.36 and later) save a twentieth. All
# are resolved at the start, so that their table is read-only from then on.
include(CheckLinkerFlag)
check_linker_flag(CXX -Wl,-z,pack-relative-relocs CKPTD_LINKS_COMPACT_RELOCATIONS)
function(ckptd_travels name)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now
    $<$<BOOL:${CKPTD_LINKS_COMPACT_RELOCATIONS}>:-Wl,-z,pack-relative-relocs>)
endfunction()

# ckptd_test(name DIRECTORY dir LABEL label DEPENDS lib... [HEADERS header...] [APART]): one gtest
# binary of every *_test.cc in dir. ctest runs it once: thousands of processes cost more than most
# of their tests. APART gives each test a process, where it needs a driver of its own, or seconds.
# Tests that link gRPC name its header: it is compiled with other macros.
function(ckptd_test name)
  cmake_parse_arguments(ARG "APART" "LABEL" "DIRECTORY;DEPENDS;HEADERS" ${ARGN})
  list(TRANSFORM ARG_DIRECTORY PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM ARG_DIRECTORY APPEND /*_test.cc)
  file(GLOB sources CONFIGURE_DEPENDS ${ARG_DIRECTORY})
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ckptd_options ckptd_testing ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${CKPTD_COLD_OPTIONS})
  if(ARG_HEADERS)
    list(APPEND ARG_HEADERS <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  ckptd_precompile(${name} FROM ckptd_test_headers HEADERS ${ARG_HEADERS})
  if(NOT ARG_APART)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 1200)
    return()
  endif()
  # Parameters have names; their values are often bytes, and other ones in each run.
  gtest_discover_tests(${name} NO_PRETTY_VALUES PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${CKPTD_TEST_SECONDS}
    DISCOVERY_TIMEOUT 60)
endfunction()
