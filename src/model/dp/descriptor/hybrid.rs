//! `hybrid`: several descriptors, one after another. Each has a cutoff, slots, nets and statistics of its own.

use super::*;

pub const VARIANT: Variant =
    Variant::of("hybrid", KEYS, "Several descriptors, one after another, as input of one fitting net");

const EACH: Kind = Kind::Object(&PART);
const KEYS: &[Key] = &[Key::new("list", Kind::List(&EACH))
    .doc("The descriptors. Each has a cutoff, numbers of neighbours and nets of its own.")];

/// The keys of a descriptor in the list.
static PART: Table =
    Table { keys: &[], variants: Some(Variants { what: "descriptor", default: "", list: &PARTS }) };

/// The name by which an input asks for a list.
pub const NAME: &str = VARIANT.name;

/// The descriptors of the checked `list`.
pub fn resolve(section: &Section, type_map: &[String]) -> Result<Vec<DescriptorOptions>> {
    let parts = section.sections("list");
    if parts.is_empty() {
        return Err(section.error("list", err!("found an empty list, wanted at least one descriptor")));
    }
    let list: Vec<DescriptorOptions> =
        parts.iter().map(|part| DescriptorOptions::resolve(part, type_map)).collect::<Result<_>>()?;
    let largest = list.iter().map(|part| part.rcut).fold(0.0, f64::max);
    if let Some(k) = list.iter().position(|part| part.is_mixed() && part.rcut < largest) {
        let error = err!("{} A is below {largest} A, the largest cutoff of the list", list[k].rcut);
        return Err(parts[k].error("rcut", error).help(
            "in DeePMD-kit attention sees all neighbours that are listed, also beyond its own cutoff: give se_atten the largest one",
        ));
    }
    Ok(list)
}
