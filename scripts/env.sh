# shellcheck shell=bash
# Sourced by bash, from the project's root. Puts a Rust toolchain that is new enough first in PATH, if there is one.

PATH=$PATH:/usr/sbin:/sbin
rust_min=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

# rust_fits DIRECTORY - whether it has cargo, and a rustc of at least $rust_min.
rust_fits() {
  local has
  [ -x "$1/cargo" ] && has=$("$1/rustc" --version 2>/dev/null) || return 1
  has=${has#rustc } has=${has%% *}
  [ "$(printf '%s\n' "$rust_min" "$has" | sort -V | head -n 1)" = "$rust_min" ]
}

# rustup keeps toolchains in a home directory; under sudo the calling user's home is searched, too. Distributions with
# several versions side by side keep each in /usr/lib/rust-VERSION.
find_rust() {
  local dir home
  if dir=$(command -v cargo) && rust_fits "${dir%/*}"; then return; fi
  home=$(getent passwd "${SUDO_USER:-$(id -un)}" | cut -d: -f6)
  for dir in ~/.cargo/bin "$home/.cargo/bin" $(printf '%s\n' /usr/lib/rust-*/bin | sort -Vr) /usr/bin; do
    if [ "$dir" = "$home/.cargo/bin" ] && [ -z "${RUSTUP_HOME-}" ] && [ "$home" != "$HOME" ]; then
      if RUSTUP_HOME=$home/.rustup rust_fits "$dir"; then
        export RUSTUP_HOME=$home/.rustup PATH=$dir:$PATH
        return
      fi
    elif rust_fits "$dir"; then
      export PATH=$dir:$PATH
      return
    fi
  done
  return 1
}

find_rust || true
