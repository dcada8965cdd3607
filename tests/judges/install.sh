#!/bin/sh
# Installs the programs that tests/judges hold the project against (Debian 12 or newer). Run as root. What is missing is skipped by the
# tests with its reason. The guest's kernel is not installed: tests/judges/lab/guest.py downloads and unpacks it into the user's cache.
set -e
apt-get update
apt-get install -y --no-install-recommends \
  pciutils \
  flashrom \
  llvm-19 \
  qemu-system-x86 \
  busybox-static \
  kmod \
  usbutils
