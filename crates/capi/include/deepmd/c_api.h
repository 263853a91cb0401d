/* The C interface of libdeepmd_c.so, as Phalanx has it: that part of DeePMD-kit's interface which its LAMMPS plugin, its i-PI driver
 * and CP2K call. Lengths in A, energies in eV, forces in eV/A.
 *
 * Every object is known by a handle. A handle is no address: one that was deleted, or that never was one, is an error and nothing worse.
 * A function that fails leaves its outputs as they are; the ..CheckOK function of the object then gives the reason as a text, which is
 * empty where all is well. Texts must be freed by DP_DeleteChar. Any thread may call; calls for one object wait for each other.
 *
 * Arrays: coord [natoms, 3], atype [natoms] (an index into the type map; negative for what is no atom of the model), cell [9] with the
 * lattice vectors as rows, NULL for open boundaries. Outputs: energy [1], force [natoms, 3], virial [9], atomic_energy [natoms],
 * atomic_virial [natoms, 9]; NULL for those that nobody wants. fparam [dim_fparam] and aparam [atoms, dim_aparam] may be NULL for models
 * without them.
 */
#ifndef PHALANX_DEEPMD_C_API_H
#define PHALANX_DEEPMD_C_API_H

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif

typedef struct DP_Nlist DP_Nlist;                             /* a neighbour list */
typedef struct DP_DeepPot DP_DeepPot;                         /* a model */
typedef struct DP_DeepPotModelDevi DP_DeepPotModelDevi;       /* several models */
typedef struct DP_DeepBaseModel DP_DeepBaseModel;             /* a DP_DeepPot, cast */
typedef struct DP_DeepBaseModelDevi DP_DeepBaseModelDevi;     /* a DP_DeepPotModelDevi, cast */
typedef struct DP_DeepTensor DP_DeepTensor;                   /* a model of dipoles or polarizabilities */
typedef struct DP_DeepSpin DP_DeepSpin;                       /* always refused, as all that follow */
typedef struct DP_DeepSpinModelDevi DP_DeepSpinModelDevi;
typedef struct DP_DipoleChargeModifier DP_DipoleChargeModifier;

/* A full neighbour list: every pair from both sides. The k-th of inum local atoms is ilist[k], its numneigh[k] neighbours are firstneigh[k],
 * indices of local atoms and ghosts. Nothing is copied: the arrays must be there while a model is evaluated. Neighbours beyond the cutoff
 * are left out. ..SetMask says which bits of a neighbour are the index. What the other ranks have and of which atoms ghosts are images
 * is not needed. */
DP_Nlist*DP_NewNlist(int inum, int* ilist, int* numneigh, int** firstneigh);
DP_Nlist*DP_NewNlist_comm(int inum, int* ilist, int* numneigh, int** firstneigh, int nswap, int* sendnum, int* recvnum,
    int* firstrecv, int** sendlist, int* sendproc, int* recvproc, void* world, int nprocs);
void DP_NlistSetMask(DP_Nlist* nl, int mask);
void DP_NlistSetMapping(DP_Nlist* nl, int* mapping);
const char*DP_NlistCheckOK(DP_Nlist* nl);
void DP_DeleteNlist(DP_Nlist* nl);

/* A model: a file .dp or .yaml, or a checkpoint, or the content of a file whose name says the format. It computes with
 * OMP_NUM_THREADS threads; without that the ranks of a host share its cores. gpu_rank chooses one of several GPUs. */
DP_DeepPot*DP_NewDeepPot(const char* model);
DP_DeepPot*DP_NewDeepPotWithParam2(const char* model, int gpu_rank, const char* content, int size);
const char*DP_DeepPotCheckOK(DP_DeepPot* dp);
void DP_DeleteDeepPot(DP_DeepPot* dp);

/* What a model says about nframes configurations, whose neighbours it finds itself; arrays of frames follow each other. The first form is
 * for callers that never ask what went wrong: it says so on the terminal too. charge_spin must be NULL. */
void DP_DeepPotCompute(DP_DeepPot* dp, int natoms, const double* coord, const int* atype, const double* cell,
    double* energy, double* force, double* virial, double* atomic_energy, double* atomic_virial);
void DP_DeepPotCompute2(DP_DeepPot* dp, int nframes, int natoms, const double* coord, const int* atype,
    const double* cell, const double* fparam, const double* aparam, double* energy, double* force, double* virial,
    double* atomic_energy, double* atomic_virial);
void DP_DeepPotCompute3(DP_DeepPot* dp, int nframes, int natoms, const double* coord, const int* atype,
    const double* cell, const double* fparam, const double* aparam, const double* charge_spin, double* energy,
    double* force, double* virial, double* atomic_energy, double* atomic_virial);

/* What a model says about a domain with its list: natoms are local atoms, then nghost ghosts. Forces and virials of ghosts are written too,
 * for the caller to add up. aparam is that of local atoms. nframes must be 1; ago and cell do not matter. */
void DP_DeepPotComputeNList2(DP_DeepPot* dp, int nframes, int natoms, const double* coord, const int* atype,
    const double* cell, int nghost, const DP_Nlist* nlist, int ago, const double* fparam, const double* aparam,
    double* energy, double* force, double* virial, double* atomic_energy, double* atomic_virial);
void DP_DeepPotComputeNList3(DP_DeepPot* dp, int nframes, int natoms, const double* coord, const int* atype,
    const double* cell, int nghost, const DP_Nlist* nlist, int ago, const double* fparam, const double* aparam,
    const double* charge_spin, double* energy, double* force, double* virial, double* atomic_energy,
    double* atomic_virial);

/* Facts of a model. The type map is the names of the types with blanks between them. */
int DP_DeepPotGetDimFParam(DP_DeepPot* dp);
int DP_DeepPotGetDimAParam(DP_DeepPot* dp);
int DP_DeepPotGetDimChgSpin(DP_DeepPot* dp);
bool DP_DeepPotHasDefaultFParam(DP_DeepPot* dp);
bool DP_DeepPotIsAParamNAll(DP_DeepPot* dp);
void DP_DeepPotSetChargeSpin(DP_DeepPot* dp, const double* charge_spin, int size);
double DP_DeepBaseModelGetCutoff(DP_DeepBaseModel* dp);
int DP_DeepBaseModelGetNumbTypes(DP_DeepBaseModel* dp);
int DP_DeepBaseModelGetNumbTypesSpin(DP_DeepBaseModel* dp);
const char*DP_DeepBaseModelGetTypeMap(DP_DeepBaseModel* dp);

/* Several models with the same types for the same atoms. Outputs of the models follow each other: energy [n_models],
 * force [n_models, natoms, 3], and so on. */
DP_DeepPotModelDevi*DP_NewDeepPotModelDeviWithParam(const char** models, int n_models, int gpu_rank,
    const char** contents, int n_contents, const int* sizes);
const char*DP_DeepPotModelDeviCheckOK(DP_DeepPotModelDevi* dp);
void DP_DeleteDeepPotModelDevi(DP_DeepPotModelDevi* dp);
void DP_DeepPotModelDeviComputeNList2(DP_DeepPotModelDevi* dp, int nframes, int natoms, const double* coord,
    const int* atype, const double* cell, int nghost, const DP_Nlist* nlist, int ago, const double* fparam,
    const double* aparam, double* energy, double* force, double* virial, double* atomic_energy, double* atomic_virial);
void DP_DeepPotModelDeviComputeNList3(DP_DeepPotModelDevi* dp, int nframes, int natoms, const double* coord,
    const int* atype, const double* cell, int nghost, const DP_Nlist* nlist, int ago, const double* fparam,
    const double* aparam, const double* charge_spin, double* energy, double* force, double* virial,
    double* atomic_energy, double* atomic_virial);
int DP_DeepPotModelDeviGetDimFParam(DP_DeepPotModelDevi* dp);
int DP_DeepPotModelDeviGetDimAParam(DP_DeepPotModelDevi* dp);
int DP_DeepPotModelDeviGetDimChgSpin(DP_DeepPotModelDevi* dp);
bool DP_DeepPotModelDeviHasDefaultFParam(DP_DeepPotModelDevi* dp);
bool DP_DeepPotModelDeviIsAParamNAll(DP_DeepPotModelDevi* dp);
void DP_DeepPotModelDeviSetChargeSpin(DP_DeepPotModelDevi* dp, const double* charge_spin, int size);
double DP_DeepBaseModelDeviGetCutoff(DP_DeepBaseModelDevi* dp);
int DP_DeepBaseModelDeviGetNumbTypes(DP_DeepBaseModelDevi* dp);
int DP_DeepBaseModelDeviGetNumbTypesSpin(DP_DeepBaseModelDevi* dp);

/* Files, texts, a summary on the terminal. A file that cannot be read gives the text of the error, and minus its length as the size. */
const char*DP_ReadFileToChar2(const char* file, int* size);
void DP_DeleteChar(const char* text);
void DP_PrintSummary(const char* before);

/* Numbers the atoms of some types: fwd_map [natoms] from an atom to its number or -1, bkw_map [nreal] back. Then gathers the rows of an array. */
void DP_SelectByType(int natoms, const int* atype, int nghost, int nsel_type, const int* sel_type, int* fwd_map,
    int* nreal, int* bkw_map, int* nghost_real);
void DP_SelectMapInt(const int* in, const int* fwd_map, int stride, int nall1, int nall2, int* out);

/* ---- Models of dipoles (dim 3) and polarizabilities (dim 9). Tensors of atoms are those of selected types alone, of atoms that are no
 * ghosts, in their order: size numbers, which the caller frees by free. global_tensor [dim] is their sum; force [dim, natoms, 3], virial
 * [dim, 9] and atomic_virial [dim, natoms, 9] are the derivatives of each of its components, with the signs of an energy's. The list of
 * selected types is there as long as the model is. */

DP_DeepTensor* DP_NewDeepTensor(const char* model);
DP_DeepTensor* DP_NewDeepTensorWithParam(const char* model, int gpu_rank, const char* name_scope);
const char* DP_DeepTensorCheckOK(DP_DeepTensor* dt);
void DP_DeleteDeepTensor(DP_DeepTensor* dt);
void DP_DeepTensorComputeTensor(DP_DeepTensor* dt, int natoms, const double* coord, const int* atype, const double* cell,
    double** tensor, int* size);
void DP_DeepTensorComputeTensorNList(DP_DeepTensor* dt, int natoms, const double* coord, const int* atype,
    const double* cell, int nghost, const DP_Nlist* nlist, double** tensor, int* size);
void DP_DeepTensorCompute(DP_DeepTensor* dt, int natoms, const double* coord, const int* atype, const double* cell,
    double* global_tensor, double* force, double* virial, double** atomic_tensor, double* atomic_virial, int* size);
void DP_DeepTensorComputeNList(DP_DeepTensor* dt, int natoms, const double* coord, const int* atype,
    const double* cell, int nghost, const DP_Nlist* nlist, double* global_tensor, double* force, double* virial,
    double** atomic_tensor, double* atomic_virial, int* size);
double DP_DeepTensorGetCutoff(DP_DeepTensor* dt);
int DP_DeepTensorGetNumbTypes(DP_DeepTensor* dt);
int DP_DeepTensorGetOutputDim(DP_DeepTensor* dt);
int DP_DeepTensorGetNumbSelTypes(DP_DeepTensor* dt);
int* DP_DeepTensorGetSelTypes(DP_DeepTensor* dt);
const char* DP_DeepTensorGetTypeMap(DP_DeepTensor* dt);

/* Not there: spin models, the dipole modifier. Those that make an object give one whose ..CheckOK says so. */
DP_DeepSpin*DP_NewDeepSpinWithParam2(const char* model, int gpu_rank, const char* content, int size);
const char*DP_DeepSpinCheckOK(DP_DeepSpin* dp);
void DP_DeleteDeepSpin(DP_DeepSpin* dp);
void DP_DeepSpinComputeNList2(DP_DeepSpin* dp, int nframes, int natoms, const double* coord, const double* spin,
    const int* atype, const double* cell, int nghost, const DP_Nlist* nlist, int ago, const double* fparam,
    const double* aparam, double* energy, double* force, double* force_mag, double* virial, double* atomic_energy,
    double* atomic_virial);
void DP_DeepSpinComputeNList3(DP_DeepSpin* dp, int nframes, int natoms, const double* coord, const double* spin,
    const int* atype, const double* cell, int nghost, const DP_Nlist* nlist, int ago, const double* fparam,
    const double* aparam, const double* charge_spin, double* energy, double* force, double* force_mag, double* virial,
    double* atomic_energy, double* atomic_virial);
int DP_DeepSpinGetDimFParam(DP_DeepSpin* dp);
int DP_DeepSpinGetDimAParam(DP_DeepSpin* dp);
int DP_DeepSpinGetDimChgSpin(DP_DeepSpin* dp);
bool DP_DeepSpinHasDefaultFParam(DP_DeepSpin* dp);
bool DP_DeepSpinIsAParamNAll(DP_DeepSpin* dp);
bool DP_DeepSpinUsesNativeSpinScheme(DP_DeepSpin* dp);
void DP_DeepSpinSetChargeSpin(DP_DeepSpin* dp, const double* charge_spin, int size);
DP_DeepSpinModelDevi*DP_NewDeepSpinModelDeviWithParam(const char** models, int n_models, int gpu_rank,
    const char** contents, int n_contents, const int* sizes);
const char*DP_DeepSpinModelDeviCheckOK(DP_DeepSpinModelDevi* dp);
void DP_DeleteDeepSpinModelDevi(DP_DeepSpinModelDevi* dp);
void DP_DeepSpinModelDeviComputeNList2(DP_DeepSpinModelDevi* dp, int nframes, int natoms, const double* coord,
    const double* spin, const int* atype, const double* cell, int nghost, const DP_Nlist* nlist, int ago,
    const double* fparam, const double* aparam, double* energy, double* force, double* force_mag, double* virial,
    double* atomic_energy, double* atomic_virial);
void DP_DeepSpinModelDeviComputeNList3(DP_DeepSpinModelDevi* dp, int nframes, int natoms, const double* coord,
    const double* spin, const int* atype, const double* cell, int nghost, const DP_Nlist* nlist, int ago,
    const double* fparam, const double* aparam, const double* charge_spin, double* energy, double* force,
    double* force_mag, double* virial, double* atomic_energy, double* atomic_virial);
int DP_DeepSpinModelDeviGetDimFParam(DP_DeepSpinModelDevi* dp);
int DP_DeepSpinModelDeviGetDimAParam(DP_DeepSpinModelDevi* dp);
int DP_DeepSpinModelDeviGetDimChgSpin(DP_DeepSpinModelDevi* dp);
bool DP_DeepSpinModelDeviHasDefaultFParam(DP_DeepSpinModelDevi* dp);
bool DP_DeepSpinModelDeviIsAParamNAll(DP_DeepSpinModelDevi* dp);
void DP_DeepSpinModelDeviSetChargeSpin(DP_DeepSpinModelDevi* dp, const double* charge_spin, int size);
DP_DipoleChargeModifier*DP_NewDipoleChargeModifierWithParam(const char* model, int gpu_rank, const char* name_scope);
const char*DP_DipoleChargeModifierCheckOK(DP_DipoleChargeModifier* dcm);
void DP_DeleteDipoleChargeModifier(DP_DipoleChargeModifier* dcm);
void DP_DipoleChargeModifierComputeNList(DP_DipoleChargeModifier* dcm, int natoms, const double* coord,
    const int* atype, const double* cell, const int* pairs, int npairs, const double* delef, int nghost,
    const DP_Nlist* nlist, double* dfcorr, double* dvcorr);
int DP_DipoleChargeModifierGetNumbSelTypes(DP_DipoleChargeModifier* dcm);

#ifdef __cplusplus
}
#endif

#endif
