/* Where and as what a rank runs: written to /tmp/where/RANK on its host before MPI_Init and, for
 * some MPIs bind there, again behind it. Prints a line to each stream, and rank 0 what it reads.
 *
 *   where [WORD]...    the last word `exit=N` is its exit status
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char cpus[4096], folder[4096], host[256];

/* A section of the record: its name, its length, its bytes as the kernel has them. */
static void section(FILE *out, const char *name, const char *path)
{
    static char bytes[1 << 20];
    FILE *in = fopen(path, "r");
    size_t length = in ? fread(bytes, 1, sizeof bytes, in) : 0;
    if (in)
        fclose(in);
    fprintf(out, "%s %zu\n", name, length);
    fwrite(bytes, 1, length, out);
}

static void record(const char *rank, const char *size)
{
    char path[256], line[4096];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "Cpus_allowed_list: %4095s", cpus) == 1)
            break;
    fclose(status);
    mkdir("/tmp/where", 0777);
    snprintf(path, sizeof path, "/tmp/where/%.200s", rank);
    FILE *out = fopen(path, "w");
    if (!out) {
        perror(path);
        exit(99);
    }
    fprintf(out, "%s\n%s\n%s\n%s\n", size, host, cpus, folder);
    section(out, "argv", "/proc/self/cmdline");
    section(out, "environ", "/proc/self/environ");
    fclose(out);
}

static const char *first(const char *one, const char *other)
{
    const char *found = getenv(one);
    found = found ? found : getenv(other);
    return found ? found : "alone";
}

int main(int argc, char **argv)
{
    char *rank = strdup(first("OMPI_COMM_WORLD_RANK", "PMI_RANK"));
    char *size = strdup(first("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"));
    char read[256];
    int code = 0;
    gethostname(host, sizeof host);
    if (!getcwd(folder, sizeof folder))
        strcpy(folder, "?");
    record(rank, size);
    MPI_Init(&argc, &argv);
    record(rank, size);
    printf("out %s of %s\n", rank, size);
    fprintf(stderr, "err %s of %s\n", rank, size);
    while (!strcmp(rank, "0") && fgets(read, sizeof read, stdin))
        printf("in %s", read);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    sscanf(argv[argc - 1], "exit=%d", &code);
    return code;
}
