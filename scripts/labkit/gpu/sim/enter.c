/* gpusim-enter SYS SCRATCH COMMAND…: run a command that sees the emulated PCI devices and ports in its /sys.
 *
 * In a mount namespace of its own: a tmpfs on SCRATCH gets a bind mount of every entry of the real /sys, three of its folders
 * opened up to take the emulated entries as well, and is then put in the place of /sys; the file SYS/../kmsg takes the place of the
 * kernel's log. The namespace, and everything mounted in it, goes with its last process. The command keeps this process's pid.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what)
{
    fprintf(stderr, "gpusim-enter: %s: %s\n", what, strerror(errno));
    exit(77);
}

static void join(char *to, size_t size, const char *folder, const char *name)
{
    if (snprintf(to, size, "%s/%s", folder, name) >= (int)size)
        fail(name);
}

/* Make `to` the same as `from`: links copied, the rest bound. */
static void same(const char *from, const char *to)
{
    struct stat status;
    char target[4096];
    if (lstat(from, &status) || !lstat(to, &(struct stat){0}))
        return; /* gone, or there already */
    if (S_ISLNK(status.st_mode)) {
        ssize_t length = readlink(from, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        if (length > 0 && symlink(target, to))
            fail(to);
        return;
    }
    if (S_ISDIR(status.st_mode) ? mkdir(to, 0755) : mknod(to, S_IFREG | 0644, 0))
        fail(to);
    if (mount(from, to, NULL, MS_BIND | MS_REC, NULL))
        fail(to);
}

static int is_opened(const char *path, const char *const *opened)
{
    for (; *opened; opened++)
        if (!strcmp(*opened, path))
            return 1;
    return 0;
}

/* Every entry of `from` in `to`, those of `opened` one level further. `path` is where this is under /sys. */
static void spread(const char *from, const char *to, const char *path, const char *const *opened)
{
    DIR *folder = opendir(from);
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char source[4096], target[4096], below[4096];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        join(source, sizeof source, from, entry->d_name);
        join(target, sizeof target, to, entry->d_name);
        join(below, sizeof below, path, entry->d_name);
        if (is_opened(below, opened)) {
            if (mkdir(target, 0755) && errno != EEXIST)
                fail(target);
            spread(source, target, below, opened);
        } else {
            same(source, target);
        }
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    static const char *const opened[] = {"/class", "/bus", "/bus/pci", "/bus/pci/devices", "/devices", NULL};
    if (argc < 4) {
        fprintf(stderr, "usage: gpusim-enter SYS SCRATCH COMMAND…\n");
        return 64;
    }
    if (unshare(CLONE_NEWNS))
        fail("unshare");
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
        fail("making mounts private");
    if (mount("gpusim", argv[2], "tmpfs", 0, "mode=755,size=1m"))
        fail(argv[2]);
    spread(argv[1], argv[2], "", opened); /* the emulated entries first: they go before real ones of the same name */
    spread("/sys", argv[2], "", opened);
    if (mount(argv[2], "/sys", NULL, MS_BIND | MS_REC, NULL))
        fail("/sys");
    char log[4096];
    join(log, sizeof log, argv[1], "../kmsg");
    if (!access(log, R_OK) && mount(log, "/dev/kmsg", NULL, MS_BIND, NULL))
        fail("/dev/kmsg");
    execvp(argv[3], argv + 3);
    fprintf(stderr, "gpusim-enter: %s: %s\n", argv[3], strerror(errno));
    return 127;
}
