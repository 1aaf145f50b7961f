# find_package(ckptd): `cmake --install BUILD --component sdk --prefix PREFIX`.
# Users write #include <ckptd/client.h>, which leads to the header in its place
# under include/ckptd, where includes from the repository root keep working.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(sdk_include ${CMAKE_INSTALL_INCLUDEDIR}/ckptd)
set(sdk_archives ${CMAKE_INSTALL_LIBDIR}/ckptd)
install(TARGETS ckptd_client ckptd_attach ckptd_wire ckptd_proto ckptd_messages ckptd_source ckptd_base
  ARCHIVE DESTINATION ${sdk_archives} COMPONENT sdk)
if(TARGET ckptd_cuda)
  install(TARGETS ckptd_cuda ARCHIVE DESTINATION ${sdk_archives} COMPONENT sdk)
endif()

foreach(header IN ITEMS
    client/cpp/address.h client/cpp/admin.h client/cpp/attach.h client/cpp/cancel.h
    client/cpp/client.h client/cpp/device_memory.h client/cpp/shard.h client/cpp/types.h
    common/base/attach_mode.h common/base/byte_swap.h common/base/digest.h common/base/handle_kind.h
    common/base/mutex.h common/base/posix.h common/base/reasons.h common/base/status.h
    common/layout/layout.h common/source/dtype.h common/source/index.h common/source/placements.h)
  cmake_path(GET header PARENT_PATH folder)
  cmake_path(GET header FILENAME name)
  install(FILES ${CMAKE_SOURCE_DIR}/${header} DESTINATION ${sdk_include}/${folder} COMPONENT sdk)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/forward/${name}
    CONTENT "#pragma once\n#include \"@header@\"\n" @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/forward/${name} DESTINATION ${sdk_include}
    COMPONENT sdk)
endforeach()

# Calls take and answer messages: what protoc has made of them, for the protobuf of this build.
foreach(message IN ITEMS admin_service checkpoint_service source types)
  install(FILES ${CMAKE_BINARY_DIR}/proto/ckptd/v1/${message}.pb.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ckptd/v1 COMPONENT sdk)
endforeach()

set(sdk_config ${CMAKE_INSTALL_LIBDIR}/cmake/ckptd)
configure_package_config_file(${CMAKE_SOURCE_DIR}/deploy/cmake/ckptdConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/ckptdConfig.cmake INSTALL_DESTINATION ${sdk_config}
  PATH_VARS sdk_archives CMAKE_INSTALL_INCLUDEDIR)
# Before 1.0 a new minor version may break what the one before promised.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/ckptdConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ckptdConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/ckptdConfigVersion.cmake DESTINATION ${sdk_config} COMPONENT sdk)
