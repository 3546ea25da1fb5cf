// Package disk makes file systems of a bounded size: an ext4 image in a
// sparse file, on a loop device, as a detached mount that only the receiver of
// its descriptor can attach. Nothing of it ever shows in the host's mount
// table, so nothing is left there when a daemon dies. The loop device goes
// with the last mount (LO_FLAGS_AUTOCLEAR), which goes with the sandbox's
// mount namespace.
//
// It needs root on the host, mkfs.ext4 (e2fsprogs), loop devices, LOOP_CONFIGURE
// (Linux 5.8), fsopen and fsmount (5.2). Quotas of projects would be cheaper,
// but few kernels and file systems have them switched on.
//
// The limit holds for all that a file system can fill: data, names, inodes (one
// for each 16 KiB), files that are deleted and still open. What ext4 needs for
// itself, some two per cent, is part of it. The image takes as much of the
// host's disk as was ever in use at once, and frees it when it is removed.
//
// Running mkfs takes longer than all else that makes a sandbox; so what it
// writes, a hundred kilobytes or so, is remembered and written again for the
// next image of the same size.
package disk
