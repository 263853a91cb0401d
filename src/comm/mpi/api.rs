//! A loaded MPI library: missing symbols and codes become errors.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};

use super::sys::{self, Constants, Request};
use crate::err;
use crate::error::Result;

/// The functions that we use of one MPI library.
pub struct Api {
    constants: Constants,
    get_library_version: sys::GetLibraryVersion,
    init_thread: sys::InitThread,
    comm_rank: sys::CommNumber,
    comm_size: sys::CommNumber,
    comm_set_errhandler: sys::CommSetErrhandler,
    isend: sys::Isend,
    irecv: sys::Irecv,
    test: sys::Test,
    error_string: sys::ErrorString,
    abort: sys::Abort,
    finalize: sys::Plain,
}

impl Api {
    /// Loads a library by path or by a name that the loader finds. `None` if there is no such file.
    pub fn load(name: &OsStr) -> Result<Api, String> {
        // SAFETY: running the initialisers of an MPI library is what its users do. Its plug-ins expect to see its
        // symbols, hence GLOBAL. It is never unloaded, because its threads and exit handlers may outlive us.
        let library = unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_GLOBAL) };
        let library = library.map_err(|e| {
            // What the loader said is in the cause.
            let cause = std::error::Error::source(&e).map_or(e.to_string(), |cause| cause.to_string());
            if cause.contains(&*name.to_string_lossy()) {
                cause
            } else {
                format!("{}: {cause}", name.display())
            }
        })?;
        let library = Box::leak(Box::new(library));
        Api::bind(library).map_err(|symbol| format!("{} has no {symbol}", name.display()))
    }

    fn bind(library: &Library) -> Result<Api, String> {
        /// One function by name; its type comes from where it is put.
        fn function<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
            // SAFETY: the types in `sys` are those of the MPI standard for these names.
            let symbol = unsafe { library.get::<T>(format!("{name}\0").as_bytes()) };
            symbol.map(|s| *s).map_err(|_| name.to_string())
        }
        Ok(Api {
            constants: constants(library)?,
            get_library_version: function(library, "MPI_Get_library_version")?,
            init_thread: function(library, "MPI_Init_thread")?,
            comm_rank: function(library, "MPI_Comm_rank")?,
            comm_size: function(library, "MPI_Comm_size")?,
            comm_set_errhandler: function(library, "MPI_Comm_set_errhandler")?,
            isend: function(library, "MPI_Isend")?,
            irecv: function(library, "MPI_Irecv")?,
            test: function(library, "MPI_Test")?,
            error_string: function(library, "MPI_Error_string")?,
            abort: function(library, "MPI_Abort")?,
            finalize: function(library, "MPI_Finalize")?,
        })
    }

    /// What the library says of itself; may be called before [`Api::init`].
    pub fn version(&self) -> String {
        self.text(|text, length| {
            // SAFETY: the buffer is as long as the longest text of any library.
            unsafe { (self.get_library_version)(text, length) }
        })
    }

    /// Starts MPI; gives whether threads may take turns. With errors as codes from now on.
    pub fn init(&self) -> Result<bool> {
        let mut provided = 0;
        let (no_args, wanted) = (std::ptr::null_mut(), self.constants.serialized);
        // SAFETY: MPI allows null for both arguments of main.
        let code = unsafe { (self.init_thread)(no_args, std::ptr::null_mut(), wanted, &raw mut provided) };
        self.check(code, "MPI_Init_thread")?;
        // SAFETY: MPI is initialised, the handles are those of this library.
        let code = unsafe { (self.comm_set_errhandler)(self.constants.world, self.constants.errors_return) };
        self.check(code, "MPI_Comm_set_errhandler")?;
        Ok(provided >= wanted)
    }

    /// Rank and size in the world.
    pub fn place(&self) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI is initialised; the numbers live through the calls.
        let codes = unsafe {
            let world = self.constants.world;
            [(self.comm_rank)(world, &raw mut rank), (self.comm_size)(world, &raw mut size)]
        };
        self.check(codes[0], "MPI_Comm_rank")?;
        self.check(codes[1], "MPI_Comm_size")?;
        Ok((rank as usize, size as usize))
    }

    /// Begins to send.
    ///
    /// # Safety
    /// `bytes` must stay as they are until [`Api::test`] says that the request is done, or until no MPI function
    /// is called any more.
    pub unsafe fn isend(&self, bytes: &[u8], to: usize) -> Result<Request> {
        let mut request = 0;
        let Constants { world, byte, .. } = self.constants;
        let (data, n) = (bytes.as_ptr().cast::<c_void>(), bytes.len() as c_int);
        // SAFETY: the caller keeps the bytes.
        let code = unsafe { (self.isend)(data, n, byte, to as c_int, TAG, world, &raw mut request) };
        self.check(code, "MPI_Isend").map(|()| request)
    }

    /// Begins to receive.
    ///
    /// # Safety
    /// As for [`Api::isend`]; nobody may look at `bytes` either.
    pub unsafe fn irecv(&self, bytes: &mut [u8], from: usize) -> Result<Request> {
        let mut request = 0;
        let Constants { world, byte, .. } = self.constants;
        let (data, n) = (bytes.as_mut_ptr().cast::<c_void>(), bytes.len() as c_int);
        // SAFETY: the caller keeps the bytes.
        let code = unsafe { (self.irecv)(data, n, byte, from as c_int, TAG, world, &raw mut request) };
        self.check(code, "MPI_Irecv").map(|()| request)
    }

    /// Whether the request is done. Also lets MPI make progress.
    pub fn test(&self, request: &mut Request) -> Result<bool> {
        let mut done = 0;
        // SAFETY: a request of this library, or the null request that a finished one became.
        let code =
            unsafe { (self.test)(request, &raw mut done, self.constants.status_ignore as *mut c_void) };
        self.check(code, "MPI_Test").map(|()| done != 0)
    }

    /// Ends all ranks, this one too.
    pub fn abort(&self) {
        // SAFETY: MPI is initialised.
        unsafe { (self.abort)(self.constants.world, 1) };
    }

    /// Ends MPI. Every rank must come.
    pub fn finalize(&self) -> Result<()> {
        // SAFETY: MPI is initialised and no request is open.
        let code = unsafe { (self.finalize)() };
        self.check(code, "MPI_Finalize")
    }

    fn check(&self, code: c_int, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let why = self.text(|text, length| {
            // SAFETY: as for the version; MPI allows this call at any time.
            unsafe { (self.error_string)(code, text, length) }
        });
        Err(err!("{what}: {why} (code {code})"))
    }

    fn text(&self, fill: impl Fn(*mut c_char, *mut c_int) -> c_int) -> String {
        let mut text = vec![0u8; sys::TEXT + 1];
        let mut length = 0;
        fill(text.as_mut_ptr().cast(), &raw mut length);
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        text.lines().next().unwrap_or("").trim().to_string()
    }
}

/// All our messages: pairs exchange them in order.
const TAG: c_int = 7;

/// Which of the three interfaces the library has. An MPICH that also offers the standard's version function but has
/// its own interface says version -1 or 0 there.
fn constants(library: &Library) -> Result<Constants, String> {
    let address = |name: &[u8]| {
        // SAFETY: only the address is taken.
        unsafe { library.get::<*const c_void>(name) }.ok().map(|symbol| symbol.into_raw() as usize)
    };
    let [world, byte, errors] = sys::OPEN_MPI_SYMBOLS.map(address);
    if let Some(world) = world {
        let missing = || "ompi_mpi_byte".to_string();
        return Ok(sys::open_mpi([world, byte.ok_or_else(missing)?, errors.ok_or_else(missing)?]));
    }
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: the type is the standard's, which allows the call before MPI_Init.
    if let Ok(version) = unsafe { library.get::<sys::AbiGetVersion>(b"MPI_Abi_get_version\0") } {
        // SAFETY: as above; the numbers live through the call.
        unsafe { version(&raw mut major, &raw mut minor) };
    }
    Ok(if major >= 1 { sys::STANDARD } else { sys::MPICH })
}
