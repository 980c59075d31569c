# How every module, test and program of the project is built.

# Bottom-up; ARCHITECTURE.md holds the include rules and the `layers` test checks them.
set(BUTTERFLY_MODULES base trace text machine tensor wire kernel model plan cluster stage infer train study)

add_library(bf_options INTERFACE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A compiler that does not collect its garbage below 1 GiB is a tenth faster.
  target_compile_options(bf_options INTERFACE --param=ggc-min-heapsize=1048576 --param=ggc-min-expand=200)
endif()
target_include_directories(bf_options INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>)
# -ffp-contract=off: the bits of every sum are written in the source, the compiler may not fuse them.
target_compile_options(bf_options INTERFACE -Wall -Wextra -Wundef -Wnon-virtual-dtor -ffp-contract=off
  # What one file calls a local another, compiled with it as one, may call a global; clang looks at each alone (scripts/tidy.sh).
  $<IF:$<CXX_COMPILER_ID:GNU>,-Wshadow=local,-Wshadow>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 finds faults in its own std::string and std::shared_ptr where they come from a precompiled header (GCC bugs
  # 105329, 105651).
  target_compile_options(bf_options INTERFACE -Wno-array-bounds -Wno-restrict -Wno-stringop-overread
    -Wno-stringop-overflow -Wno-maybe-uninitialized)
endif()
# Programs and tests load what they use.
target_link_options(bf_options INTERFACE LINKER:--as-needed)
if(BUTTERFLY_WERROR)
  target_compile_options(bf_options INTERFACE -Werror)
endif()
if(BUTTERFLY_TINY)
  target_compile_definitions(bf_options INTERFACE BUTTERFLY_TINY=1)
endif()
if(BUTTERFLY_SANITIZE)
  # Before every target's own options: those of tests and of single modules take checks away again.
  add_compile_options(-fsanitize=${BUTTERFLY_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(bf_options INTERFACE -fsanitize=${BUTTERFLY_SANITIZE})
  if(BUTTERFLY_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
if(BUTTERFLY_FUZZERS)
  target_compile_options(bf_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# What almost every file parses, compiled once for all modules and once, with GoogleTest, for all tests: the standard
# library's common headers, fmt's core and Result. Files of one instruction set do without: what a precompiled header
# holds inline would be compiled for that set. Every header compiles alone all the same (tools/check_headers.py).
option(BUTTERFLY_PCH "Precompiled headers" ON)
set(BUTTERFLY_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring>
  <filesystem> <functional> <limits> <map> <memory> <mutex> <optional> <set> <span> <sstream> <string> <string_view>
  <thread> <variant> <vector> <fmt/core.h> <tl/expected.hpp> ${CMAKE_SOURCE_DIR}/src/butterfly/base/result.h)

# butterfly_precompiled(NAME LIBS target... HEADERS header...): a target that holds a precompiled header and no code.
function(butterfly_precompiled name)
  cmake_parse_arguments(ARG "" "" "LIBS;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(${name} PRIVATE bf_options fmt::fmt spdlog::spdlog ${ARG_LIBS})
  target_precompile_headers(${name} PRIVATE ${BUTTERFLY_COMMON_HEADERS} ${ARG_HEADERS})
endfunction()

# butterfly_precompile(TARGET modules|tests): the target's files find their common headers compiled.
function(butterfly_precompile target kind)
  if(NOT BUTTERFLY_PCH)
    return()
  endif()
  set(shared bf_precompiled_${kind})
  if(NOT TARGET ${shared})
    if(kind STREQUAL "tests")
      butterfly_precompiled(${shared} LIBS GTest::gtest GTest::gmock HEADERS <gtest/gtest.h> <gmock/gmock.h>)
      # As programs are compiled, not libraries.
      set_target_properties(${shared} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${shared} PRIVATE -fPIE ${BUTTERFLY_TEST_OPTIONS})
    else()
      butterfly_precompiled(${shared})
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${shared})
endfunction()

# butterfly_unite(TARGET source...): a target's files, in the order of their folders, are compiled as one, about
# BUTTERFLY_UNITE_KIB of them, so that what they share is parsed, instantiated and emitted once: of a small file, that is
# most of the time. Larger ones cost less in all, but more after each change. Files with options of their own (one
# instruction set) and those of kernel and tensor stay alone: what they hold inline must not reach another file's code.
set(BUTTERFLY_UNITE_KIB 256 CACHE STRING "KiB of a target's source files that are compiled as one; 0: each file alone")
function(butterfly_unite target)
  if(BUTTERFLY_UNITE_KIB LESS 1)
    return()
  endif()
  set(total 0)
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source)
    file(SIZE ${source} size)
    math(EXPR total "${total} + ${size}")
  endforeach()
  math(EXPR groups "${total} / (1024 * ${BUTTERFLY_UNITE_KIB}) + 1")
  set(before 0)
  foreach(source ${ARGN})
    math(EXPR group "${before} * ${groups} / (${total} + 1)")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${target}_${group}")
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
    file(SIZE ${path} size)
    math(EXPR before "${before} + ${size}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ takes every file but the first for a header, where an unnamed namespace would be a mistake.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# Code that decides, reports and waits, but does not compute, need not be fast: -Og saves a third of its compile time, and
# a seventh more than -O1 does.
set(BUTTERFLY_COLD_OPTIONS $<$<CONFIG:Release>:-Og>)
# What tests do themselves need not be fast: a third of their compile time is saved, under a sanitizer half of it. There
# what computes, and the search for plans, is optimised whatever the preset says of the rest.
if(BUTTERFLY_SANITIZE)
  # What tests do themselves is not looked at for undefined behaviour: a third less to compile.
  set(BUTTERFLY_TEST_OPTIONS -O0 -fno-sanitize=undefined)
  set(BUTTERFLY_HOT_OPTIONS -O1)
else()
  set(BUTTERFLY_TEST_OPTIONS -Og)
  set(BUTTERFLY_HOT_OPTIONS "")
endif()
set(BUTTERFLY_HOT_MODULES kernel tensor plan)
# These read what others wrote, as bytes. The rest does without the checks of each pointer's null, alignment and type,
# half of what undefined behaviour's sanitizer costs to compile; the address sanitizer sees a null pointer, too.
set(BUTTERFLY_BYTES_MODULES kernel tensor wire model)

# butterfly_compile(TARGET SOURCES OPTIONS link...): how a module's library is compiled.
function(butterfly_compile target sources options)
  target_link_libraries(${target} PUBLIC ${ARGN})
  target_compile_options(${target} PRIVATE ${options})
  string(REGEX REPLACE "^bf_|_cold$" "" module ${target})
  if(BUTTERFLY_SANITIZE MATCHES "undefined" AND NOT module IN_LIST BUTTERFLY_BYTES_MODULES)
    target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment,vptr,object-size)
  endif()
  if(NOT module MATCHES "^(kernel|tensor)$")
    butterfly_unite(${target} ${sources})
  endif()
  if(NOT (BUTTERFLY_SANITIZE AND module IN_LIST BUTTERFLY_HOT_MODULES))  # the header is not optimised then, these are
    butterfly_precompile(${target} modules)
  endif()
endfunction()

# butterfly_module(NAME DEPS module... LIBS target... SOURCES extra... COLD path...)
# Takes every foo.cc below the current folder; foo_test.cc becomes part of <module>_test, foo_bench.cc of <module>_bench.
# COLD names the folders and files whose code need not be fast.
function(butterfly_module name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS;SOURCES;COLD" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS *_test.cc)
  file(GLOB_RECURSE benches CONFIGURE_DEPENDS *_bench.cc)
  list(REMOVE_ITEM sources ${tests} ${benches} "")
  list(APPEND sources ${ARG_SOURCES})
  set(cold "")
  foreach(path ${ARG_COLD})
    cmake_path(ABSOLUTE_PATH path NORMALIZE)
    foreach(source ${sources})
      cmake_path(IS_PREFIX path ${source} is_below)
      if(is_below)
        list(APPEND cold ${source})
      endif()
    endforeach()
  endforeach()
  set(links bf_options ${ARG_LIBS})
  foreach(dep ${ARG_DEPS})
    list(APPEND links bf_${dep})
  endforeach()
  if(sources)
    set(options "")
    if(name IN_LIST BUTTERFLY_HOT_MODULES)
      set(options ${BUTTERFLY_HOT_OPTIONS})
    elseif("${cold}" STREQUAL "${sources}")
      set(options ${BUTTERFLY_COLD_OPTIONS})
    elseif(cold)
      list(REMOVE_ITEM sources ${cold})
      add_library(bf_${name}_cold OBJECT ${cold})
      butterfly_compile(bf_${name}_cold "${cold}" "${BUTTERFLY_COLD_OPTIONS}" ${links})
      set(objects $<TARGET_OBJECTS:bf_${name}_cold>)
    endif()
    add_library(bf_${name} STATIC ${sources} ${objects})
    butterfly_compile(bf_${name} "${sources}" "${options}" ${links})
    foreach(source ${sources})
      if(source MATCHES "(avx2|avx512|amx)\\.cc$")
        set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  else()
    add_library(bf_${name} INTERFACE)
    target_link_libraries(bf_${name} INTERFACE ${links})
  endif()
  if(BUTTERFLY_TESTS AND tests)
    butterfly_test(${name}_test LABELS unit DEPS ${name} SOURCES ${tests})
  endif()
  if(BUTTERFLY_BENCHMARKS AND benches)
    find_package(benchmark REQUIRED)
    add_executable(${name}_bench ${benches})
    target_link_libraries(${name}_bench PRIVATE bf_${name} benchmark::benchmark benchmark::benchmark_main)
  endif()
endfunction()

# butterfly_messages(NAME PROTOS butterfly/module/file.proto... [IMPORTS file.proto...] [LIBS target...])
# What protoc makes of messages, by their paths below src/, as library bf_NAME. It is compiled apart, without our
# warnings; others see its headers as system headers. IMPORTS are messages of LIBS that these use.
function(butterfly_messages name)
  cmake_parse_arguments(ARG "" "" "PROTOS;IMPORTS;LIBS" ${ARGN})
  set(root ${CMAKE_SOURCE_DIR}/src)
  set(generated ${CMAKE_BINARY_DIR}/generated)
  list(TRANSFORM ARG_PROTOS PREPEND ${root}/ OUTPUT_VARIABLE sources)
  list(TRANSFORM ARG_IMPORTS PREPEND ${root}/ OUTPUT_VARIABLE imports)
  foreach(proto ${ARG_PROTOS})
    string(REGEX REPLACE "\\.proto$" "" stem ${generated}/${proto})
    add_custom_command(
      OUTPUT ${stem}.pb.cc ${stem}.pb.h
      COMMAND ${CMAKE_COMMAND} -E make_directory ${generated}
      COMMAND protobuf::protoc --cpp_out=${generated} --proto_path=${root} ${proto}
      DEPENDS ${sources} ${imports}
      COMMENT "Generating messages of ${proto}"
      VERBATIM)
    list(APPEND code ${stem}.pb.cc)
  endforeach()
  add_library(bf_${name} STATIC ${code})
  target_link_libraries(bf_${name} PUBLIC bf_options protobuf::libprotobuf ${ARG_LIBS})
  target_compile_options(bf_${name} PRIVATE -w ${BUTTERFLY_COLD_OPTIONS})
  target_include_directories(bf_${name} SYSTEM PUBLIC ${generated})
endfunction()

# All programs of tests labelled unit.
add_custom_target(unit_tests)

# butterfly_test(NAME LABELS label... DEPS module... SOURCES file... [TIMEOUT seconds])
# What may take longest (COST: by its timeout, then its number of files) begins first, so that no long test runs alone at
# the end.
# Where suites are named for another kind (ParityLinear, FaultsTcp, GradNorms), they become a ctest of their own, NAME.parity, with
# that label, and the rest stays in NAME. A suite that is new since CMake last ran is part of the rest until it runs again.
function(butterfly_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;DEPS;LIBS;SOURCES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${name} PRIVATE bf_${dep})
  endforeach()
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE BUTTERFLY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${BUTTERFLY_TEST_OPTIONS})
  butterfly_precompile(${name} tests)
  butterfly_unite(${name} ${ARG_SOURCES})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(BUTTERFLY_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  if("unit" IN_LIST ARG_LABELS)
    add_dependencies(unit_tests ${name})
  endif()
  set(elsewhere "")
  foreach(kind Parity Golden Dist Faults Grad)
    string(TOLOWER ${kind} label)
    set(suites "")
    foreach(source ${ARG_SOURCES})
      file(STRINGS ${source} found REGEX "^TEST(_[FP])?\\(${kind}")
      list(APPEND suites ${found})
    endforeach()
    if(suites AND NOT label IN_LIST ARG_LABELS)
      butterfly_add_test(${name}.${label} "${kind}*:*/${kind}*" "${label}")
      string(APPEND elsewhere ":${kind}*:*/${kind}*")
    endif()
  endforeach()
  butterfly_add_test(${name} "*-${elsewhere}" "${ARG_LABELS}")
endfunction()

# Part of butterfly_test: the cases of its program that match `filter`. Under a sanitizer, large programs run as two
# halves, NAME.half0 and NAME.half1: minutes long, they would stand alone at the end.
macro(butterfly_add_test test filter labels)
  list(LENGTH ARG_SOURCES cost)
  set(halves "")
  if(BUTTERFLY_SANITIZE AND cost GREATER 8)
    set(halves 0 1)
  endif()
  math(EXPR cost "${cost} + ${ARG_TIMEOUT}")
  set(added ${test})
  if(halves)
    list(TRANSFORM halves PREPEND ${test}.half OUTPUT_VARIABLE added)
  endif()
  foreach(one ${added})
    add_test(NAME ${one} COMMAND ${name} --gtest_filter=${filter})
    set_tests_properties(${one} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT} COST ${cost})
    if(one MATCHES "[.]half([01])$")
      set(folder ${CMAKE_BINARY_DIR}/Testing/half${CMAKE_MATCH_1})  # their files do not meet
      file(MAKE_DIRECTORY ${folder})
      set_tests_properties(${one} PROPERTIES ENVIRONMENT
        "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=${CMAKE_MATCH_1};TEST_TMPDIR=${folder}/")
    endif()
  endforeach()
endmacro()
