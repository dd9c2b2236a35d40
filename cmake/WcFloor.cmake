# wc_floor(NAME [ON floor...] SOURCES file... [LIBS lib...] [TEST_LIBS lib...])
#
# A floor is one static library wc_NAME with an include root of its own
# (<build>/floors/NAME/NAME -> src/NAME). It sees its own headers and those of the floors it
# stands ON; nothing else is on its include path, so an include that climbs does not compile.
# LIBS are private: a third-party header stays invisible above.
# Sources are listed (a lost one fails to link); tests, fuzz targets and benches are globbed
# (a lost one would be silent): *_test.cc, *_fuzz.cc, *_bench.cc lie beside the code; *_testing.cc is
# what tests share.
function(wc_floor name)
  cmake_parse_arguments(F "" "" "ON;SOURCES;LIBS;TEST_LIBS" ${ARGN})
  set(dir ${PROJECT_SOURCE_DIR}/src/${name})
  list(TRANSFORM F_SOURCES PREPEND ${dir}/)
  add_library(wc_${name} STATIC ${F_SOURCES})
  set(root ${CMAKE_BINARY_DIR}/floors/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${dir} ${root}/${name} SYMBOLIC)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${dir}/*.h)
  list(TRANSFORM headers REPLACE "^${PROJECT_SOURCE_DIR}/src/" "${root}/")
  target_sources(wc_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${root} FILES ${headers})
  set_target_properties(wc_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  list(TRANSFORM F_ON PREPEND wc_)
  target_link_libraries(wc_${name} PUBLIC ${F_ON} PRIVATE wc_flags ${F_LIBS})

  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${dir}/*_test.cc)
  file(GLOB_RECURSE testing CONFIGURE_DEPENDS ${dir}/*_testing.cc)
  if(tests AND WC_TESTS)
    add_executable(${name}_test ${tests} ${testing})
    target_link_libraries(${name}_test
      PRIVATE wc_${name} wc_flags wc_testing ${F_LIBS} ${F_TEST_LIBS})
    add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT 900)
    set_property(GLOBAL APPEND PROPERTY WC_TEST_TARGETS ${name}_test)
  endif()

  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS ${dir}/*_fuzz.cc)
  foreach(fuzzer ${fuzzers})
    get_filename_component(stem ${fuzzer} NAME_WE)
    wc_fuzz(${stem} ${fuzzer} ${name} ${F_LIBS})
  endforeach()

  file(GLOB_RECURSE benches CONFIGURE_DEPENDS ${dir}/*_bench.cc)
  if(benches AND WC_BENCH)
    add_executable(${name}_bench ${benches})
    target_link_libraries(${name}_bench
      PRIVATE wc_${name} wc_flags benchmark::benchmark_main ${F_LIBS})
  endif()
endfunction()

# One fuzz target a parser of foreign bytes, beside the parser. Under the fuzz preset it is a
# libFuzzer binary and its planted twin (tools/fuzz/accepted.h); in every other build the same entry
# point replays testdata/fuzz_corpus/NAME as an ordinary test.
function(wc_fuzz stem source floor)
  string(REGEX REPLACE "_fuzz$" "" short ${stem})
  set(corpus ${PROJECT_SOURCE_DIR}/testdata/fuzz_corpus/${short})
  set(harness ${PROJECT_SOURCE_DIR}/tools/fuzz)
  set(root ${CMAKE_BINARY_DIR}/floors/fuzz)
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${harness} ${root}/fuzz SYMBOLIC)
  if(WC_FUZZ)
    add_library(${stem}_entry OBJECT ${source})
    target_include_directories(${stem}_entry PRIVATE ${root})
    target_link_libraries(${stem}_entry PRIVATE wc_${floor} wc_flags ${ARGN})
    foreach(target ${stem} ${stem}_planted)
      add_executable(${target} ${harness}/libfuzzer.cc)
      target_include_directories(${target} PRIVATE ${root})
      target_link_libraries(${target} PRIVATE ${stem}_entry wc_${floor} wc_flags ${ARGN})
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    endforeach()
    target_compile_definitions(${stem}_planted PRIVATE WC_PLANT_OVERFLOW)
    set_property(GLOBAL APPEND PROPERTY WC_FUZZ_TARGETS ${stem})
  elseif(WC_TESTS)
    add_executable(${stem} ${source} ${harness}/replay.cc)
    target_include_directories(${stem} PRIVATE ${root})
    target_link_libraries(${stem} PRIVATE wc_${floor} wc_flags ${ARGN})
    add_test(NAME ${stem} COMMAND ${stem} ${corpus} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_property(GLOBAL APPEND PROPERTY WC_TEST_TARGETS ${stem})
  endif()
endfunction()
