# What `cmake --install` puts where, and the Debian packages of `cpack -G DEB`. To be included last.
#
#   PREFIX/bin                the programs, and links to the tools in Python and bash
#   PREFIX/share/dptrain      these tools and their modules, the studies, get_cifar.sh
#   PREFIX/share/man, share/bash-completion, share/zsh
#   PREFIX/share/doc/dptrain  licence, changes, examples
#   PREFIX/lib, include       the library (comm/capi/CMakeLists.txt)
#
# Packages: dptrain, libdptrain-comm0, libdptrain-comm-dev. Files that Debian has at other places, or compressed, are in
# components of their own, which only packages take.
set(DP_MAINTAINER "dptrain authors <authors@dptrain.example>" CACHE STRING "Who answers for the packages: NAME <ADDRESS>")
mark_as_advanced(DP_MAINTAINER)
set(doc ${CMAKE_INSTALL_DATADIR}/doc/dptrain)
set(share ${CMAKE_INSTALL_DATADIR}/dptrain)
set(experiments ${PROJECT_SOURCE_DIR}/experiments)

# --- Programs and tools ---------------------------------------------------------------------------------
dp_runpath_for_installation(dptrain dptrun dpbench dptrain-pack)
install(TARGETS dptrain dptrun dpbench dptrain-pack RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
install(PROGRAMS ${experiments}/dplab ${experiments}/dpreport ${experiments}/dpsweep ${experiments}/weights.py
                 ${experiments}/get_cifar.sh
        DESTINATION ${share}/experiments COMPONENT programs)
install(DIRECTORY ${experiments}/convert ${experiments}/lab ${experiments}/report ${experiments}/sweep
        DESTINATION ${share}/experiments COMPONENT programs
        FILES_MATCHING PATTERN *.py PATTERN requirements.txt PATTERN state/README PATTERN __pycache__ EXCLUDE)
install(PROGRAMS ${experiments}/lab/dplab-agent DESTINATION ${share}/experiments/lab COMPONENT programs)
file(GLOB studies CONFIGURE_DEPENDS ${experiments}/studies/*.ini)
install(FILES ${studies} ${experiments}/peers.csv DESTINATION ${share}/experiments COMPONENT programs)

file(RELATIVE_PATH tools /${CMAKE_INSTALL_BINDIR} /${share}/experiments)
foreach(pair "dplab dplab" "dpreport dpreport" "dpsweep dpsweep" "dptrain-weights weights.py" "dptrain-get-cifar get_cifar.sh")
  separate_arguments(pair)
  list(GET pair 0 name)
  list(GET pair 1 script)
  set(link ${PROJECT_BINARY_DIR}/links/${name})
  if(NOT IS_SYMLINK ${link})
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/links)
    file(CREATE_LINK ${tools}/${script} ${link} SYMBOLIC)
  endif()
  install(FILES ${link} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endforeach()

# --- Pages, completions, texts --------------------------------------------------------------------------
foreach(name IN LISTS DP_MANUAL_NAMES)
  install(FILES ${DP_MANUAL_FOLDER}/man/${name}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT texts)
  install(FILES ${DP_MANUAL_FOLDER}/zsh/_${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT texts)
  install(FILES ${DP_MANUAL_FOLDER}/bash/${name}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT programs)
  install(FILES ${DP_MANUAL_FOLDER}/man/${name}.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
          COMPONENT debian_programs EXCLUDE_FROM_ALL)
  install(FILES ${DP_MANUAL_FOLDER}/zsh/_${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions
          COMPONENT debian_programs EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc} COMPONENT texts)
install(FILES ${PROJECT_SOURCE_DIR}/app/CHANGELOG.md DESTINATION ${doc} COMPONENT texts)
install(DIRECTORY ${experiments}/cluster DESTINATION ${doc}/examples COMPONENT programs PATTERN README.md EXCLUDE)

# --- Debian packages ------------------------------------------------------------------------------------
# Debian's form of copyright and changes.
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(debian ${PROJECT_BINARY_DIR}/debian)
file(STRINGS LICENSE license)
set(paragraphs)
foreach(line IN LISTS license)
  if(line STREQUAL "")
    set(line .)
  endif()
  string(APPEND paragraphs " ${line}\n")
endforeach()
file(STRINGS LICENSE holder REGEX "^Copyright")
string(REGEX REPLACE "^Copyright \\(c\\) " "" holder "${holder}")
set(comment "")
if(DP_HAVE_CUDA)
  set(comment "Comment: The programs hold NVIDIA's libcudart, linked statically (CUDA Toolkit EULA, attachment A).\n")
endif()
file(CONFIGURE OUTPUT ${debian}/copyright @ONLY CONTENT
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: dptrain

Files: *
Copyright: @holder@
@comment@License: Expat
@paragraphs@")
if(NOT EXISTS ${debian}/changelog-${PROJECT_VERSION})
  file(WRITE ${debian}/changelog-${PROJECT_VERSION}
       "dptrain (${PROJECT_VERSION}-1) unstable; urgency=low\n\n  * See changelog.gz.\n\n -- ${DP_MAINTAINER}  ${now}\n")
endif()
find_program(DP_GZIP gzip)
mark_as_advanced(DP_GZIP)
if(DP_GZIP)
  set(packed)
  foreach(pair "changelog.gz|${PROJECT_SOURCE_DIR}/app/CHANGELOG.md" "changelog.Debian.gz|${debian}/changelog-${PROJECT_VERSION}")
    string(REGEX REPLACE "[|].*" "" name "${pair}")
    string(REGEX REPLACE "^[^|]*[|]" "" source "${pair}")
    execute_process(COMMAND "${DP_GZIP}" -9nc "${source}" OUTPUT_FILE "${debian}/${name}" COMMAND_ERROR_IS_FATAL ANY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    list(APPEND packed "${debian}/${name}")
  endforeach()
endif()
foreach(pair "debian_programs dptrain" "debian_library libdptrain-comm${PROJECT_VERSION_MAJOR}" "debian_development libdptrain-comm-dev")
  separate_arguments(pair)
  list(GET pair 0 component)
  list(GET pair 1 package)
  install(FILES ${debian}/copyright ${packed} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "${DP_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL programs debian_programs debian_library debian_development)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_PROGRAMS_GROUP programs)
set(CPACK_COMPONENT_DEBIAN_PROGRAMS_GROUP programs)
set(CPACK_COMPONENT_DEBIAN_LIBRARY_GROUP library)
set(CPACK_COMPONENT_DEBIAN_DEVELOPMENT_GROUP development)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Without this tool CPack would leave out, without an error, what the programs depend on.
file(WRITE ${debian}/needs.cmake
     "find_program(DP_SHLIBDEPS dpkg-shlibdeps)\nif(NOT DP_SHLIBDEPS)\n"
     "  message(FATAL_ERROR \"Debian packages need dpkg-shlibdeps and file: apt install dpkg-dev file\")\nendif()\n")
set(CPACK_PROJECT_CONFIG_FILE ${debian}/needs.cmake)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME dptrain)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION science)
# openmpi-bin brings mpirun, which wants ssh even on one machine.
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_DEPENDS "openmpi-bin, openssh-client, python3 (>= 3.9)")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_RECOMMENDS "python3-h5py, python3-pandas, python3-matplotlib, iproute2, curl | wget")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libdptrain-comm${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(soname ${PROJECT_VERSION_MAJOR})
file(WRITE ${debian}/triggers "activate-noawait ldconfig\n")
file(WRITE ${debian}/shlibs "libdptrain_comm ${soname} libdptrain-comm${soname} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${debian}/triggers ${debian}/shlibs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libdptrain-comm-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libdptrain-comm${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")

# Below the project's own summary.
set(needs "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(needs "\nIt needs a processor with AVX2 (x86-64-v3).")
endif()
set(CPACK_DEBIAN_PROGRAMS_DESCRIPTION
"dptrain trains convolutional networks on many ranks that are joined by a
slow network, and compresses the gradients that they exchange. It brings
dptrun, which starts a run again when something fails, the benches dpbench,
and the tools dpreport, dpsweep and dplab.${needs}")
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION
"The exchange of dptrain as a library for other programs: sums of gradients
over many ranks, compressed and with error feedback.${needs}")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION
"The header of libdptrain_comm and its files for CMake and pkg-config.")
include(CPack)
