#!/bin/sh
# bin/dptrain, bin/dptrun, bin/dpbench, bin/dptrain-pack, bin/mpirun and bin/orted of the bundle are links to this
# script. It starts the program of the same name with the bundle's own Open MPI, wherever the bundle was unpacked: nothing of
# another Open MPI on this machine is read. mpirun starts bin/orted on other hosts, which comes here, too.
self=$(readlink -f -- "$0") || exit 70
root=$(dirname -- "$(dirname -- "$self")")
name=$(basename -- "$0")

export OPAL_PREFIX="$root" OPAL_BINDIR="$root/bin" OPAL_LIBDIR="$root/lib" OPAL_PKGLIBDIR="$root/lib/openmpi"
export OPAL_DATADIR="$root/share" OPAL_DATAROOTDIR="$root/share" OPAL_PKGDATADIR="$root/share/openmpi"
export OPAL_SYSCONFDIR="$root/etc/openmpi" HWLOC_PLUGINS_PATH="$root/lib/hwloc"
export PMIX_INSTALL_PREFIX="$root" PMIX_LIBDIR="$root/lib" PMIX_PKGLIBDIR="$root/lib/pmix"
export PMIX_SYSCONFDIR="$root/etc" PMIX_DATADIR="$root/share" PMIX_PKGDATADIR="$root/share/pmix"

# Without ssh Open MPI does not even start ranks on this machine, unless an option tells it not to look for it.
if ! command -v ssh >/dev/null 2>&1 && ! command -v rsh >/dev/null 2>&1 && [ -z "${OMPI_MCA_plm_rsh_agent:-}" ]; then
  export OMPI_MCA_plm="${OMPI_MCA_plm:-^rsh}"
fi

case $name in
  mpirun | mpiexec)
    # mpirun refuses to run as root, or with more ranks than cores, unless options allow it. A path given by
    # --prefix wins over the bundle's own.
    export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT:-1}"
    export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}"
    export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
    export PATH="$root/bin:$PATH"
    exec "$root/libexec/orterun" --prefix "$root" "$@"
    ;;
  dptrun) # starts the bundle's mpirun, through this script
    export PATH="$root/bin:$PATH"
    exec "$root/libexec/dptrun" "$@"
    ;;
  *) exec "$root/libexec/$name" "$@" ;;
esac
