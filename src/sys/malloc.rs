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

/// Size of a huge page, where there are some, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;
/// Puts ordinary pages together. Not every C library has the name yet (`mman-common.h`).
#[cfg(target_os = "linux")]
const MADV_COLLAPSE: libc::c_int = 25;
/// Size of an ordinary page, in bytes.
pub const PAGE: usize = 4096;

/// Asks for huge pages behind the memory of `buffer`, if it is large enough for some: a fault for each 4 KiB costs
/// more than filling them does. No more memory is used than the buffer has capacity.
pub fn prefer_huge_pages(buffer: &mut Vec<u8>) {
    #[cfg(target_os = "linux")]
    {
        let start = buffer.as_ptr() as usize;
        // With the pages that the allocator has a part of: a huge page starts and ends with them or not at all.
        let (first, last) = (start / PAGE * PAGE, (start + buffer.capacity()).next_multiple_of(PAGE));
        if last.saturating_sub(first) >= HUGE_PAGE {
            // SAFETY: the pages are those that the buffer lies in, and the advice changes neither their content nor
            // their protection. Where pages are larger, the call fails, which does not matter.
            unsafe { libc::madvise(first as *mut libc::c_void, last - first, libc::MADV_HUGEPAGE) };
            // The allocator's note at the start has made the first page an ordinary one, and all of its huge page
            // with it, unless they are put together again (Linux 6.1).
            // SAFETY: as before; what is in the pages stays.
            unsafe { libc::madvise(first as *mut libc::c_void, HUGE_PAGE, MADV_COLLAPSE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = buffer;
}
