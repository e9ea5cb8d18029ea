/* Ranks of a healthy job that end at different times.
 *
 *   uneven early SECONDS   rank 0 works for that long, the others call MPI_Finalize at once
 *   uneven spawn SECONDS   they spawn one child more than they are, which end, with codes that
 *                          are not the job's; then all work
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size, length;
    char host[256] = "", version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Comm parent, children;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    gethostname(host, sizeof host - 1);
    if (parent != MPI_COMM_NULL) {
        printf("child %d of %d on %s\n", rank, size, host);
        fflush(stdout);
        MPI_Comm_disconnect(&parent);
    } else if (argc == 3) {
        if (strcmp(argv[1], "early")) {
            MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, size + 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD,
                           &children, MPI_ERRCODES_IGNORE);
            MPI_Comm_disconnect(&children);
            MPI_Barrier(MPI_COMM_WORLD);
        }
        MPI_Get_library_version(version, &length);
        version[strcspn(version, "\n")] = 0;
        printf("rank %d of %d on %s: %s\n", rank, size, host, version);
        fflush(stdout);
        if (rank == 0 || !strcmp(argv[1], "spawn"))
            sleep(atoi(argv[2]));
    }
    MPI_Finalize();
    return parent == MPI_COMM_NULL ? 0 : 3;
}
