//! Which MPI library belongs to the mpirun that started us.
//!
//! A library of another kind does not fail: it believes that it is alone. So the library next to the launcher's own
//! program goes first, then the folders that the environment names, then whatever the loader finds; and only names
//! of the launcher's kind are tried.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::api::Api;
use crate::comm::{CommOptions, process};
use crate::launch::MpiFamily;

const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi_abi.so.1", "libmpi_abi.so.0"];
/// Never plain `libmpi.so`: some packages make it a text for the linker.
const MPICH: &[&str] = &["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpich.so.12"];

/// The library and where it was, or all that was tried.
pub fn load(family: MpiFamily, options: &CommOptions) -> Result<(Api, String), String> {
    if let Some(path) = &options.mpi_library {
        return Api::load(path.as_os_str()).map(|api| (api, path.display().to_string()));
    }
    let names = match family {
        MpiFamily::OpenMpi => OPEN_MPI,
        MpiFamily::Mpich => MPICH,
    };
    let launcher = process::launcher().and_then(|a| a.program);
    let mut wrong = Vec::new();
    for folder in folders(launcher.as_deref(), options) {
        for path in names.iter().map(|name| folder.join(name)).filter(|path| path.exists()) {
            match Api::load(path.as_os_str()) {
                Ok(api) => return Ok((api, path.display().to_string())),
                Err(e) => wrong.push(e),
            }
        }
    }
    for name in names {
        match Api::load(&OsString::from(name)) {
            Ok(api) => return Ok((api, name.to_string())),
            Err(e) => wrong.push(e),
        }
    }
    Err(format!("no MPI library: {}", wrong.join("; ")))
}

/// Folders that may hold the library of the launcher `program`, best first.
fn folders(program: Option<&Path>, options: &CommOptions) -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut folders = Vec::new();
    if let Some(root) = program.and_then(Path::parent).and_then(Path::parent) {
        folders.extend(["lib", "lib64"].map(|lib| root.join(lib)));
        folders.push(root.join("lib").join(&triplet));
    }
    folders.extend(
        options.mpi_roots.iter().flat_map(|root| ["lib", "lib/release", "lib64"].map(|lib| root.join(lib))),
    );
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_next_to_the_launcher_comes_first() {
        let options = CommOptions { mpi_roots: vec!["/opt/mpi".into()], ..CommOptions::default() };
        let found = folders(Some(Path::new("/site/bin/mpiexec.hydra")), &options);
        assert_eq!(found[0], Path::new("/site/lib"));
        assert!(found.contains(&PathBuf::from("/opt/mpi/lib")));
        assert!(folders(None, &CommOptions::default()).is_empty());
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let options =
            CommOptions { mpi_library: Some("/nowhere/libmpi.so.12".into()), ..CommOptions::default() };
        let Err(why) = load(MpiFamily::Mpich, &options) else { panic!("there is no such file") };
        assert!(why.contains("/nowhere/libmpi.so.12"), "{why}");
    }

    #[test]
    fn a_library_that_is_not_mpi_is_refused() {
        let options = CommOptions { mpi_library: Some("libc.so.6".into()), ..CommOptions::default() };
        let Err(why) = load(MpiFamily::Mpich, &options) else { panic!("libc is no MPI") };
        assert!(why.contains("libc.so.6 has no MPI_"), "{why}");
    }
}
