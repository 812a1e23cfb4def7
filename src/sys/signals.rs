//! What the process does on a signal.

/// Whether `signal` is ignored, as whoever started the process may have wanted it.
#[cfg(unix)]
pub fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action sigaction only writes the present one, for which there is room. All zeros is a value
    // of this C struct, so it may be read even where nothing was written.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
