//! How the C library's allocator behaves, for the program as a whole.

/// Buffers from this size on go back to the system when they are freed.
const MAPPED: i32 = 1 << 20;
/// Free memory at the end of the heap goes back when it is more than this.
const TRIMMED: i32 = 4 << 20;

/// Makes glibc give large buffers back when they are freed. By default it learns from the first large buffer that is
/// freed to keep such buffers for ever, in one arena per thread, and the peak of one phase adds to that of the next.
/// Buffers that are needed again at once are kept by their budgets.
///
/// For a program's `main`: the settings are those of the whole process.
pub fn give_back_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt may be called at any time; it changes two numbers that the allocator reads under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIMMED);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = (MAPPED, TRIMMED);
}
