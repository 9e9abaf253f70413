# How the crate highs-sys builds HiGHS; .cargo/config.toml names this file.
# Many sources at once: most of the time would go by with headers that all of them include.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
# For tests it need not be fast: they ask for small clusters. Cargo tells build scripts how far to optimize.
if("$ENV{OPT_LEVEL}" STREQUAL "0")
  set(CMAKE_C_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
endif()
