//! The guarantees of file systems after a power cut.

/// The guarantees of a file system, or of a standard: a choice of `--crash-model`.
///
/// All models guarantee that data are on the device if a sync of the file covers them, or if a write with `O_DSYNC` or `RWF_DSYNC` wrote
/// them; that names are if a sync of their directory covers them; that a sector is written as a whole; and that a rename never leaves the
/// new name without a file. A sync covers only operations that had ended before the sync was submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    /// The name.
    pub name: &'static str,
    /// The guarantees in a few words.
    pub about: &'static str,
    /// Changes of names and sizes become durable in their order, because the file system has them in its journal.
    pub orders_names: bool,
    /// A sync of a file covers its own names, too: its creation, links to it, and renames of it.
    pub syncs_names_of_file: bool,
    /// If a rename that puts a file in the place of another one is durable, so are the data that were written to the file
    /// before.
    pub replaces_with_data: bool,
    /// A file may have its new size before its data; what is missing is zeros or rubbish.
    pub grows_before_data: bool,
    /// A renamed file may have its old name as well as its new one.
    pub may_keep_old_name: bool,
}

impl Model {
    /// ext4 with its default options: data=ordered, auto_da_alloc.
    pub const EXT4: Model = Model {
        name: "ext4",
        about: "data=ordered, auto_da_alloc: names in order, no size without its data, a replaced file has its data",
        orders_names: true,
        syncs_names_of_file: true,
        replaces_with_data: true,
        grows_before_data: false,
        may_keep_old_name: false,
    };
    /// XFS.
    pub const XFS: Model = Model {
        name: "xfs",
        about: "names in order, no size without its data",
        replaces_with_data: false,
        ..Model::EXT4
    };
    /// The promises of POSIX and of the manual pages.
    pub const POSIX: Model = Model {
        name: "posix",
        about: "what the manual pages promise: nothing without a sync of the file, and one of each directory",
        orders_names: false,
        syncs_names_of_file: false,
        replaces_with_data: false,
        grows_before_data: true,
        may_keep_old_name: true,
    };
    /// All models; the first one is the default.
    pub const ALL: [Model; 3] = [Model::EXT4, Model::XFS, Model::POSIX];

    /// Returns the model with this name.
    pub fn named(name: &str) -> Option<Model> {
        Model::ALL.into_iter().find(|model| model.name == name)
    }
}
